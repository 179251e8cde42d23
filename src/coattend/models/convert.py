"""Conversion of the weights of plain, p4 and p4m networks that other libraries trained.

Accepts state dicts that follow the G-CNN layout, with poses in the order of GrouPy: group convolutions have weights
(out, in, poses, k, k), and output pose g reads input pose h through slice g^-1 h. Pose r of p4 rotates r times
counter-clockwise, pose 4 m + r of p4m rotates r times and then mirrors the rows m times. For p4 this is the order used
here; for p4m and for the clockwise group of DREN the slices are reordered (docs/conventions.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from coattend.groups import FiniteGroup
from coattend.nn import (
    AttentionLayer,
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
    """Return a state dict for ``model``, converted from that of another library with poses in GrouPy's order.

    Args:
        state: the state dict to convert.
        model: the network to fill, over z2, p4, p4m or the clockwise p4.
        rename: maps names of ``state`` to names of ``model`` by regular expressions that match whole names,
            ``{r"c(\\d)\\.weight": r"stages.0.layer\\1.conv.weight"}``; the first match is used.
        group_conv_factor: a constant by which the other library scales the output of its group convolutions (2 * pi / 4
            in some); the layers here do not, so that the weights are multiplied by it.

    Weights without poses are copied, also those of a linear layer that a network of yours applies to flattened poses.
    Missing biases become zeros. Every name of ``state`` must match one of the model, and every parameter of the model
    must get a value; otherwise a ValueError lists the rest.
    """
    if not isinstance(state, Mapping) or not isinstance(model, nn.Module):
        raise ValueError(
            "convert_state_dict expects a state dict and the network to fill, got "
            f"{type(state).__name__} and {type(model).__name__}."
        )
    layers = dict(model.named_modules())
    expected = model.state_dict()
    converted: dict[str, Tensor] = {}
    unmatched = []
    for name, tensor in state.items():
        target = _renamed(name, rename)
        if target is None or target not in expected:
            unmatched.append(name if target is None else f"{name} -> {target}")
            continue
        layer = layers[target.rpartition(".")[0]]
        owner = layers.get(target.rpartition(".")[0].rpartition(".")[0])
        fitted = _fitted(name, tensor, expected[target], layer, target, group_conv_factor)
        converted[target] = _reordered(fitted, layer, owner) if target.endswith("weight") else fitted
    if unmatched:
        raise ValueError(
            f"the model has no parameter for {', '.join(unmatched[:5])}{' and more' if len(unmatched) > 5 else ''}; "
            f"add a pattern to `rename` that gives one of the model's names, such as {', '.join(list(expected)[:3])}."
        )
    for name, layer in layers.items():
        bias = f"{name}.bias"
        if isinstance(layer, PoseConv2d) and bias in expected:
            converted.setdefault(bias, torch.zeros_like(expected[bias]))
    missing = [name for name in expected if name not in converted]
    if missing:
        raise ValueError(
            f"the model also has {', '.join(missing[:5])}{' and more' if len(missing) > 5 else ''}, for which the "
            "state dict has no value; extend `rename`, or build the model without them."
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
        tensor = tensor.squeeze(2)  # some store lifting filters with a group axis of length 1
    if is_weight and tensor.ndim == 4 and expected.ndim == 5 and expected.shape[2] == 1:
        tensor = tensor.unsqueeze(2)  # a plain convolution is a group convolution over the trivial group
    if tensor.shape != expected.shape:
        raise ValueError(f"{name} is {tuple(tensor.shape)}, but {target} is {tuple(expected.shape)}.")
    if is_weight and isinstance(layer, (GroupConv2d, SliceCoAttentiveConv2d)):
        tensor = tensor.double() * group_conv_factor  # rounded once, to the model's precision
    return tensor.to(expected.dtype)


def _reordered(weight: Tensor, layer: nn.Module, owner: nn.Module | None) -> Tensor:
    """Return weights with a group axis in the order used here instead of GrouPy's."""
    if isinstance(layer, (GroupConv2d, SliceCoAttentiveConv2d)):
        index = _groupy_index(layer.group)
        if weight.shape[2] != len(index):
            raise ValueError(
                f"the model has {weight.shape[2]} of the {len(index)} relative poses; convert into the whole network "
                "and restrict it afterwards."
            )
        return weight.index_select(2, index)
    if not isinstance(layer, AttentionLayer):
        return weight
    if not isinstance(layer, CoAttention) or layer.heads > 1:
        raise ValueError(
            f"convert_state_dict does not know how the weights of {type(layer).__name__} depend on the order of poses; "
            "build the model with attention=output, slice or none."
        )
    index = _groupy_index(layer.group)
    if layer.structure == "paper" and layer.group.order == 8:
        raise ValueError(
            "the blocks of Eq. 11 (structure=paper) over p4m form another matrix in GrouPy's order of poses than here, "
            "so that such weights cannot be converted; use structure=group."
        )
    if layer.structure == "full":
        weight = weight.index_select(1, index)
    if isinstance(owner, SliceCoAttentiveConv2d):
        weight = weight.unflatten(0, (owner.out_channels, -1)).index_select(1, index).flatten(0, 1)
    return weight.index_select(-1, index)


def _groupy_index(group: FiniteGroup) -> Tensor:
    """Return the number of each element in GrouPy."""
    groupy = [
        np.linalg.matrix_power(MIRRORED_ROWS, m) @ np.linalg.matrix_power(QUARTER_TURN, r)
        for m in range(2)
        for r in range(4)
    ][: group.order]
    matrices = () if group.planar is None else group.planar
    index = [i for matrix in matrices for i, other in enumerate(groupy) if np.allclose(matrix, other)]
    if len(index) != group.order:
        raise ValueError(
            f"convert_state_dict knows the order of poses of z2, p4 and p4m in GrouPy, the model is over {group.name}; "
            "build it over one of these."
        )
    return torch.tensor(index)
