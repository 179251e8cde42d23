"""Is a network exactly equivariant at an input size? Computed from its layers, not measured."""

from __future__ import annotations

import torch
from torch import nn

from coattend.equivariance import divides
from coattend.groups import FiniteGroup
from coattend.models.network import EquivariantNetwork, FeatureBackbone
from coattend.nn import CoAttention, PoseConv2d


def is_exact(model: nn.Module, size: int | tuple[int, int]) -> bool:
    """Whether the model commutes exactly with the group it is built over for images of this size.

    It does if no filter is interpolated, every attention matrix has the group's structure, and every stride and pooling
    window divides the maps it slides over. A network over the trivial group is exact in that sense, and invariant to
    nothing.
    """
    height, width = (size, size) if isinstance(size, int) else size
    groups = {layer.group for layer in model.modules() if isinstance(layer, PoseConv2d)}
    if not all(group.is_exact for group in groups):
        return False
    if not all(layer.is_equivariant for layer in model.modules() if isinstance(layer, CoAttention)):
        return False
    if groups and all(_is_trivial(group) for group in groups):
        return True
    in_channels = in_channels_of(model)
    parameter = next(model.parameters())
    image = torch.zeros(1, in_channels, height, width, dtype=parameter.dtype, device=parameter.device)
    return divides(model, image)


def _is_trivial(group: FiniteGroup) -> bool:
    return group.order == 1


def in_channels_of(model: nn.Module) -> int:
    """How many channels the images of a network have."""
    if isinstance(model, (EquivariantNetwork, FeatureBackbone)):
        return model.in_channels
    first = next((m for m in model.modules() if isinstance(m, (PoseConv2d, nn.Conv2d))), None)
    if first is None:
        raise ValueError("is_exact needs a model with a convolution, to know how many channels its images have.")
    return first.in_channels
