"""Gates on maps: sigmoid masks of channels and positions from pooled statistics.

[RB20] Romero, Bekkers, Tomczak, Hoogendoorn, *Attentive Group Equivariant Convolutional Networks*, ICML 2020: attention
on the input of a group convolution.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.functional.attention import without_autocast
from coattend.functional.checks import MAP, check_group, check_parameters, check_tensor
from coattend.functional.dispatch import decomposes, is_eager
from coattend.functional.filter_bank import group_filters
from coattend.functional.pose_linear import pose_bank, relative_table
from coattend.functional.tables import turn_tables
from coattend.groups import Filters, FiniteGroup


class GateBanks(NamedTuple):
    """The matrices and filters of a gate, see :func:`group_gate`.

    - squeeze, excite: of the gate of channels, (out * group, in / groups * group)
    - spatial: (group, 2 * group, k, k); of images, which have one pose, (turns, 2, k, k)
    """

    squeeze: Tensor
    excite: Tensor
    spatial: Tensor


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
    return apply_gates(x, _checked_banks(x, squeeze, excite, spatial, group, filters, kernel_size))


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
    return mask_formula(x, _checked_banks(x, squeeze, excite, spatial, group, filters, kernel_size))


def apply_gates(x: Tensor, banks: GateBanks) -> Tensor:
    """Compute :func:`group_gate`, on CPUs image by image: the map is read and written once from memory."""
    if decomposes(x):
        return x * mask_formula(x, banks)
    if is_eager(x):
        from coattend.functional._kernels.gates import GateFunction

        return without_autocast(GateFunction.apply, x, *banks)
    y, *_ = without_autocast(torch.ops.coattend.group_gate, x, *banks)
    return y


def mask_formula(x: Tensor, banks: GateBanks) -> Tensor:
    """Return ``1 - alpha_X * alpha_C``, with the maximum over the turned filters of an image."""
    alpha_c = channel_gate(x, banks.squeeze, banks.excite)
    planes = channel_statistics(x, alpha_c).flatten(1, 2)
    maps = F.conv2d(planes, banks.spatial, padding=banks.spatial.shape[-1] // 2)
    return gate_mask(maps.unflatten(1, (-1, x.shape[2])).amax(1, keepdim=True), alpha_c)


def channel_gate(x: Tensor, squeeze: Tensor, excite: Tensor) -> Tensor:
    """Return alpha_C, (batch, channels, group), from the mean and the maximum over the positions of a map."""
    statistics = torch.stack([x.mean((-2, -1)), x.amax((-2, -1))], dim=-1).flatten(1, 2)
    groups = x.shape[1] * x.shape[2] // squeeze.shape[1]
    # Not by apply_bank, which branches on the number of axes: torch.fx traces this for files of frozen networks.
    hidden = F.conv2d(statistics[..., None], squeeze[..., None, None], groups=groups).relu()
    logits = F.conv2d(hidden.sum(2, keepdim=True), excite[..., None, None], groups=groups)
    return logits.flatten(1).unflatten(1, (-1, x.shape[2])).sigmoid()


def channel_statistics(x: Tensor, gate: Tensor) -> Tensor:
    """Return the mean and the maximum over the channels of a gated map: (batch, 2, group, height, width)."""
    gated = x * gate[..., None, None]
    return torch.stack([gated.mean(1), gated.amax(1)], dim=1)


def gate_mask(maps: Tensor, gate: Tensor) -> Tensor:
    """Return ``1 - sigmoid(maps) * gate`` for maps (batch, 1, group, height, width) and a gate of channels."""
    return 1 - maps.sigmoid() * gate[..., None, None]


def gate_gradients(grad: Tensor, x: Tensor, banks: GateBanks) -> tuple[Tensor, ...]:
    """Return the gradients of the formula with respect to the map and the banks, which can be differentiated again."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        tensors = [t if t.requires_grad else t.detach().requires_grad_() for t in (x, *banks)]
        y = tensors[0] * mask_formula(tensors[0], GateBanks(*tensors[1:]))
        return torch.autograd.grad(y, tensors, grad, create_graph=again)


def _checked_banks(
    x: Tensor,
    squeeze: Tensor,
    excite: Tensor,
    spatial: Tensor,
    group: FiniteGroup,
    filters: Filters,
    kernel_size: int | None,
) -> GateBanks:
    name = "group_gate"
    check_group(name, group)
    check_tensor(name, "x", x, MAP, 5)
    for label, weight in (("squeeze", squeeze), ("excite", excite)):
        check_tensor(name, label, weight, "(out, in / groups, group)", 3)
    size = check_parameters(name, spatial, None, group, 5, filters, kernel_size)
    channels, hidden, n = x.shape[1], len(squeeze), group.order
    groups = channels // max(1, squeeze.shape[1])
    fits = squeeze.shape == (hidden, channels // max(1, groups), n) and spatial.shape[:3] == (1, 2, n) and size % 2 == 1
    if not fits or excite.shape != (channels, hidden // groups, n) or x.shape[2] != n:
        raise ValueError(
            f"{name} expects squeeze (hidden, channels / groups, group), excite (channels, hidden / groups, group) and "
            f"spatial (1, 2, group, k, k) with odd k for {channels} channels and {n} poses, got "
            f"{tuple(squeeze.shape)}, {tuple(excite.shape)} and {tuple(spatial.shape)} for x {tuple(x.shape)}."
        )
    relative = relative_table(group).to(x.device)
    turns = turn_tables(group, size, filters).to(x.device)
    return GateBanks(pose_bank(squeeze, relative), pose_bank(excite, relative), group_filters(spatial, turns, relative))
