"""Weights of plain, p4 and p4m networks trained elsewhere, brought into the networks here.

Understood are state dicts in the order of GrouPy, which G-CNNs use: group convolutions with weights (out, in, poses, k,
k), output pose g looking at input pose h through slice g^-1 h. Pose r of p4 turns counter-clockwise r times, pose
4 m + r of p4m turns r times and then mirrors the rows m times. For p4 that is our own order; for p4m and for the
clockwise group of DREN the slices are put into ours (docs/conventions.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from coattend.groups import FiniteGroup
from coattend.nn import (
    CoAttention,
    GroupConv2d,
    LiftingConv2d,
    PoseConv2d,
    ProjectionConv2d,
    SliceCoAttentiveConv2d,
)

QUARTER_TURN, MIRRORED_ROWS = np.array([[0.0, -1.0], [1.0, 0.0]]), np.diag([1.0, -1.0])


def convert_state_dict(
    state: Mapping[str, Tensor], model: nn.Module, rename: Mapping[str, str], group_conv_factor: float = 1.0
) -> dict[str, Tensor]:
    """A state dict for ``model`` from one of another library, whose poses are in GrouPy's order.

    Args:
        state: the foreign state dict.
        model: the network to fill, over z2, p4, p4m or the clockwise p4.
        rename: foreign names to ours, as regular expressions that match whole names, ``{r"c(\\d)\\.weight":
            r"stages.0.layer\\1.conv.weight"}``; the first that matches counts.
        group_conv_factor: a constant by which the foreign library scales the output of its group convolutions
            (2 * pi / 4 in some); ours do not, so it goes into the weights.

    Biases that the foreign network does not have are filled with zeros. Every foreign name must find its place, and
    every parameter of the model a value; otherwise a ValueError lists what is left.
    """
    if not isinstance(state, Mapping) or not isinstance(model, nn.Module):
        raise ValueError(
            "convert_state_dict expects a state dict and the network to fill, got "
            f"{type(state).__name__} and {type(model).__name__}."
        )
    layers = dict(model.named_modules())
    expected = model.state_dict()
    converted: dict[str, Tensor] = {}
    homeless = []
    for name, tensor in state.items():
        target = _renamed(name, rename)
        if target is None or target not in expected:
            homeless.append(name if target is None else f"{name} -> {target}")
            continue
        layer = layers[target.rpartition(".")[0]]
        owner = layers.get(target.rpartition(".")[0].rpartition(".")[0])
        fitted = _fitted(name, tensor, expected[target], layer, target, group_conv_factor)
        converted[target] = _reordered(fitted, layer, owner) if target.endswith("weight") else fitted
    if homeless:
        raise ValueError(
            f"no place for {', '.join(homeless[:5])}{' and more' if len(homeless) > 5 else ''}; give a pattern in "
            f"`rename` that leads to one of the model's names, such as {', '.join(list(expected)[:3])}."
        )
    for name, layer in layers.items():
        bias = f"{name}.bias"
        if isinstance(layer, PoseConv2d) and bias in expected:
            converted.setdefault(bias, torch.zeros_like(expected[bias]))
    missing = [name for name in expected if name not in converted]
    if missing:
        raise ValueError(
            f"the model also has {', '.join(missing[:5])}{' and more' if len(missing) > 5 else ''}, for which the "
            "foreign state dict offers nothing; extend `rename`, or build the model without them."
        )
    return converted


def _renamed(name: str, rename: Mapping[str, str]) -> str | None:
    for pattern, replacement in rename.items():
        match = re.fullmatch(pattern, name)
        if match is not None:
            return match.expand(replacement)
    return None


def _fitted(
    name: str, tensor: Tensor, expected: Tensor, layer: nn.Module, target: str, group_conv_factor: float
) -> Tensor:
    is_weight = isinstance(layer, PoseConv2d) and target.endswith("weight")
    if is_weight and isinstance(layer, (LiftingConv2d, ProjectionConv2d)) and tensor.ndim == 5 and tensor.shape[2] == 1:
        tensor = tensor.squeeze(2)  # lifting filters are kept with a group axis of length 1 by some
    if is_weight and tensor.ndim == 4 and expected.ndim == 5 and expected.shape[2] == 1:
        tensor = tensor.unsqueeze(2)  # a plain convolution is one over the trivial group
    if tensor.shape != expected.shape:
        raise ValueError(f"{name} is {tuple(tensor.shape)}, but {target} is {tuple(expected.shape)}.")
    if is_weight and isinstance(layer, (GroupConv2d, SliceCoAttentiveConv2d)):
        tensor = tensor.double() * group_conv_factor  # rounded once, to the model's precision
    return tensor.to(expected.dtype)


def _reordered(weight: Tensor, layer: nn.Module, owner: nn.Module | None) -> Tensor:
    """Weights with a group axis, from GrouPy's order into ours."""
    if isinstance(layer, (GroupConv2d, SliceCoAttentiveConv2d)):
        return weight.index_select(2, _places(layer.group))
    if not isinstance(layer, CoAttention):
        return weight
    places = _places(layer.group)
    if layer.structure == "paper" and layer.group.order == 8:
        raise ValueError(
            "the blocks of Eq. 11 (structure=paper) over p4m make another matrix in GrouPy's order of poses than in "
            "ours, so that such weights cannot be converted; use structure=group."
        )
    if layer.structure == "full":
        weight = weight.index_select(1, places)
    if isinstance(owner, SliceCoAttentiveConv2d):
        weight = weight.unflatten(0, (owner.out_channels, -1)).index_select(1, places).flatten(0, 1)
    return weight.index_select(-1, places)


def _places(group: FiniteGroup) -> Tensor:
    """For each of our elements, its number in GrouPy."""
    theirs = [
        np.linalg.matrix_power(MIRRORED_ROWS, m) @ np.linalg.matrix_power(QUARTER_TURN, r)
        for m in range(2)
        for r in range(4)
    ][: group.order]
    matrices = () if group.planar is None else group.planar
    places = [i for matrix in matrices for i, their in enumerate(theirs) if np.allclose(matrix, their)]
    if len(places) != group.order:
        raise ValueError(
            f"convert_state_dict knows the order of poses of z2, p4 and p4m in GrouPy, the model is over {group.name}; "
            "build it over one of these."
        )
    return torch.tensor(places)
