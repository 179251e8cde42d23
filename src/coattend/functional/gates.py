"""Gates on maps: sigmoid masks of channels and positions from pooled statistics.

[RB20] Romero, Bekkers, Tomczak, Hoogendoorn, *Attentive Group Equivariant Convolutional Networks*, ICML 2020: attention
on the input of a group convolution.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coattend.functional.checks import MAP, check_tensor
from coattend.functional.convolution import group_conv2d
from coattend.functional.pose_linear import apply_bank, pose_bank, relative_table
from coattend.groups import Filters, FiniteGroup


def group_gate(
    x: Tensor,
    squeeze: Tensor,
    excite: Tensor,
    spatial: Tensor,
    group: FiniteGroup,
    filters: Filters = "free",
    *,
    kernel_size: int | None = None,
) -> Tensor:
    """Multiply a map by ``1 - alpha_X * alpha_C``, a gate of positions times a gate of channels, both per pose.

    ``alpha_C[c, g] = sigmoid(W2 * relu(W1 * mean_u x) + W2 * relu(W1 * max_u x))``, 1x1 group convolutions of the
    mean and the maximum over positions; ``alpha_X[g](u) = sigmoid(Psi * (mean_c, max_c) of alpha_C x)``, one k x k
    group convolution of two maps.

    Args:
        x: a map (batch, channels, group, height, width).
        squeeze: W1, (hidden, channels / groups, group).
        excite: W2, (channels, hidden / groups, group); the number of groups of channels follows from the shapes.
        spatial: Psi, (1, 2, group, k, k) with odd k, or (1, 2, group, coefficients) of steerable filters.
        group: the group of the third axis.
        filters, kernel_size: see :func:`group_conv2d`.
    """
    return x * group_gate_mask(x, squeeze, excite, spatial, group, filters, kernel_size=kernel_size)


def group_gate_mask(
    x: Tensor,
    squeeze: Tensor,
    excite: Tensor,
    spatial: Tensor,
    group: FiniteGroup,
    filters: Filters = "free",
    *,
    kernel_size: int | None = None,
) -> Tensor:
    """Return the mask of :func:`group_gate`: values in [0, 1], in the shape of the map."""
    name, n = "group_gate", group.order
    check_tensor(name, "x", x, MAP, 5)
    for label, weight in (("squeeze", squeeze), ("excite", excite)):
        check_tensor(name, label, weight, "(out, in / groups, group)", 3)
    channels, hidden = x.shape[1], len(squeeze)
    groups = channels // max(1, squeeze.shape[1])
    expected = (hidden, channels // groups, n), (channels, hidden // groups, n)
    if (squeeze.shape, excite.shape) != expected or x.shape[2] != n:
        raise ValueError(
            f"{name} expects squeeze (hidden, channels / groups, group) and excite (channels, hidden / groups, group) "
            f"for {channels} channels and {n} poses, got {tuple(squeeze.shape)} and {tuple(excite.shape)} for x "
            f"{tuple(x.shape)}."
        )
    size = spatial.shape[-1] if kernel_size is None else kernel_size
    alpha_c = channel_gate(x, squeeze, excite, relative_table(group).to(x.device))
    maps = group_conv2d(
        channel_statistics(x, alpha_c), spatial, None, group, 1, size // 2, filters=filters, kernel_size=kernel_size
    )
    return gate_mask(maps, alpha_c)


def channel_gate(x: Tensor, squeeze: Tensor, excite: Tensor, relative: Tensor) -> Tensor:
    """Return alpha_C, (batch, channels, group), from the mean and the maximum over the positions of a map."""
    statistics = torch.stack([x.mean((-2, -1)), x.amax((-2, -1))], dim=-1)
    groups = x.shape[1] // squeeze.shape[1]
    hidden = apply_bank(statistics, pose_bank(squeeze, relative), groups).relu()
    return apply_bank(hidden.sum(-1), pose_bank(excite, relative), groups).sigmoid()


def channel_statistics(x: Tensor, gate: Tensor) -> Tensor:
    """Return the mean and the maximum over the channels of a gated map: (batch, 2, group, height, width)."""
    gated = x * gate[..., None, None]
    return torch.stack([gated.mean(1), gated.amax(1)], dim=1)


def gate_mask(maps: Tensor, gate: Tensor) -> Tensor:
    """Return ``1 - sigmoid(maps) * gate`` for maps (batch, 1, group, height, width) and a gate of channels."""
    return 1 - maps.sigmoid() * gate[..., None, None]
