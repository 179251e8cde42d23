"""Weights of p4 networks trained elsewhere, brought into the networks here.

Understood are state dicts in the G-CNN manner: group convolutions with weights (out, in, 4, k, k), the poses in
counter-clockwise order, pose r of output looking at input pose s through slice (s - r) mod 4. That is our own order
(docs/conventions.md), so weights are copied; names, constant factors and absent biases are what differs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from coattend.nn import GroupConv2d, LiftingConv2d, PoseConv2d, ProjectionConv2d, SliceCoAttentiveConv2d


def convert_state_dict(
    state: Mapping[str, Tensor], model: nn.Module, rename: Mapping[str, str], group_conv_factor: float = 1.0
) -> dict[str, Tensor]:
    """A state dict for ``model`` from one of another p4 library.

    Args:
        state: the foreign state dict.
        model: the network to fill; its group must have order 4 and count counter-clockwise.
        rename: foreign names to ours, as regular expressions that match whole names, ``{r"c(\\d)\\.weight":
            r"stages.0.layer\\1.conv.weight"}``; the first that matches counts.
        group_conv_factor: a constant by which the foreign library scales the output of its group convolutions
            (2 * pi / 4 in some); ours do not, so it goes into the weights.

    Biases that the foreign network does not have are filled with zeros. Every foreign name must find its place, and
    every parameter of the model a value; otherwise a ValueError lists what is left.
    """
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
        converted[target] = _fitted(name, tensor, expected[target], layer, target, group_conv_factor)
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
    if tensor.shape != expected.shape:
        raise ValueError(f"{name} is {tuple(tensor.shape)}, but {target} is {tuple(expected.shape)}.")
    if is_weight and isinstance(layer, (GroupConv2d, SliceCoAttentiveConv2d)):
        tensor = tensor * group_conv_factor
    return tensor.to(expected.dtype)
