"""Banks of turned filters: the filters of the plain convolutions that convolve on a group.

Letters of axes: o and i output and input channel, g and h output and input pose, t slice of a filter on the group,
k k taps. ``turns`` is what :func:`coattend.groups.filter_turns` returns. Weights of steerable filters have one axis of
coefficients instead of k k.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.functional.checks import check_table, check_tensor, select
from coattend.functional.tables import GroupTables


def lifting_filters(weight: Tensor, turns: Tensor) -> Tensor:
    """Return the bank of a lifting convolution, ``bank[o, g, i] = g.(weight[o, i])``: o i k k -> (o g) i k k."""
    return turn_filters(weight, turns).transpose(1, 2).flatten(0, 1)


def projection_filters(weight: Tensor, turns: Tensor) -> Tensor:
    """Return the bank of a projection, ``bank[o, i, h] = h.(weight[o, i])``: o i k k -> o (i h) k k."""
    return turn_filters(weight, turns).flatten(1, 2)


def pose_filters(weight: Tensor, turns: Tensor) -> Tensor:
    """Return the bank of a projection with one channel group per pose, ``bank[h, o, i] = h.(weight[o, i])``.

    o i k k -> (h o) i k k
    """
    return turn_filters(weight, turns).permute(2, 0, 1, 3, 4).flatten(0, 1)


def group_filters(weight: Tensor, turns: Tensor, relative: Tensor) -> Tensor:
    """Return the bank of a group convolution, ``bank[o, g, i, h] = g.(weight[o, i, relative[g, h]])``.

    o i t k k -> (o g) (i h) k k, where ``relative[g, h]`` is the slice of the relative pose g^-1 h. If the filter has
    fewer slices than the group has poses, the slice after the last one is zero.
    """
    check_table("group_filters", "relative", relative, "(group, group)", 2)
    _check_weight("group_filters", weight, turns, 3)
    if weight.shape[2] < len(relative):
        weight = F.pad(weight, (0, 0) * (weight.ndim - 3) + (0, 1))
    poses = torch.arange(len(relative), device=relative.device)[:, None]
    bank = turned_slices(weight, turns, relative, poses)  # o i g h k k
    return bank.transpose(1, 2).flatten(2, 3).flatten(0, 1)


def table_filters(weight: Tensor, tables: GroupTables, groups: int) -> Tensor:
    """Return the bank of a group convolution with given tables: of all pairs of poses, or of blocks of poses."""
    if tables.blocks is None:
        return group_filters(weight, tables.turns, tables.relative)
    slices, poses = tables.blocks.slices, tables.blocks.poses
    return tables.blocks.layout.filters(turned_slices(weight, tables.turns, slices, poses), groups)


def slice_filters(weight: Tensor, turns: Tensor, poses: Tensor) -> Tensor:
    """Return the bank of a slice-attentive convolution, with one channel group per input pose h.

    ``bank[h, o, t, i] = poses[h, t].(weight[o, i, t])``: o i t k k -> (h o t) i k k
    """
    check_table("slice_filters", "poses", poses, "(group, slices)", 2)
    slices = torch.arange(poses.shape[1], device=poses.device).expand(poses.shape)
    bank = turned_slices(weight, turns, slices, poses)  # o i h t k k
    return bank.permute(2, 0, 3, 1, 4, 5).flatten(0, 2)


def turn_filters(weight: Tensor, turns: Tensor) -> Tensor:
    """Return every filter in every pose: o i k k -> o i g k k."""
    _check_weight("turn_filters", weight, turns, 2)
    numbers = weight.flatten(2)
    if turns.is_floating_point():
        turned = torch.einsum("...p,gqp->...gq", numbers, turns.to(numbers.dtype))
    else:
        turned = select("turn_filters", numbers, -1, turns)
    return turned.reshape(*weight.shape[:2], len(turns), *_kernel(turns))


def turned_slices(weight: Tensor, turns: Tensor, slices: Tensor, poses: Tensor) -> Tensor:
    """Return slices of a filter in given poses, ``bank[o, i, a, b] = poses[a, b].(weight[o, i, slices[a, b]])``.

    o i t k k -> o i (shape of ``slices``) k k
    """
    _check_weight("turned_slices", weight, turns, 3)
    check_table("turned_slices", "slices", slices, "(a, b)")
    check_table("turned_slices", "poses", poses, "(a, b)")
    out_channels, in_channels, number = weight.shape[:3]
    if turns.is_floating_point():
        # Every slice in every pose by one product of matrices, then a permutation: [slice, pose] -> [a, b].
        turned = torch.matmul(weight.flatten(3), turns.to(weight.dtype).flatten(0, 1).mT)
        index = slices * len(turns) + poses
        every = turned.reshape(out_channels, in_channels, number * len(turns), turns.shape[1])
        bank = select("turned_slices", every, 2, index)
    else:
        taps = select("turned_slices", turns, 0, poses).reshape(*poses.shape, -1)
        bank = select("turned_slices", weight.flatten(2), 2, slices[..., None] * turns.shape[1] + taps)
    return bank.reshape(out_channels, in_channels, *slices.shape, *_kernel(turns))


def _kernel(turns: Tensor) -> tuple[int, int]:
    k = math.isqrt(turns.shape[1])
    return k, k


def _check_weight(function: str, weight: Tensor, turns: Tensor, axes: int) -> None:
    """Require filters, k x k taps or coefficients after a number of other axes, and the maps of such filters."""
    steerable = isinstance(weight, Tensor) and weight.ndim == axes + 1
    names = "(out, in" if axes == 2 else "(out, in, slices"
    check_tensor(function, "weight", weight, f"{names}, k, k)", axes + (1 if steerable else 2))
    k, numbers = weight.shape[-1], weight.shape[axes:].numel()
    if (
        not isinstance(turns, Tensor)
        or turns.ndim != (3 if turns.is_floating_point() else 2)
        or turns.shape[-1] != numbers
        or not (turns.is_floating_point() if steerable else weight.shape[-2] == k and turns.shape[1] == numbers)
    ):
        got = tuple(turns.shape) if isinstance(turns, Tensor) else repr(turns)
        raise ValueError(
            f"{function} expects square filters {names}, k, k) and the turns of such filters, integers (group, k * k) "
            f"or numbers (group, k * k, k * k), or coefficients {names}, n) and numbers (group, k * k, n), got filters "
            f"{tuple(weight.shape)} and turns {got}; pass coattend.groups.filter_turns(group, kernel_size={k})."
        )
