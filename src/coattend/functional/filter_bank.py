"""Banks of turned filters: the filters of the plain convolutions that convolve on a group.

Letters of axes: o and i output and input channel, g and h output and input pose, t slice of a filter on the group,
k k taps. Weights of steerable filters have one axis of coefficients instead of k k. ``turns`` are :class:`Turns`, or
for exact groups what :func:`coattend.groups.filter_turns` returns.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.functional.checks import check_table, check_tensor, select
from coattend.functional.kept_index import kept_index
from coattend.functional.tables import GroupTables, Turns


def lifting_filters(weight: Tensor, turns: Turns | Tensor) -> Tensor:
    """Return the bank of a lifting convolution, ``bank[o, g, i] = g.(weight[o, i])``: o i k k -> (o g) i k k."""
    return turn_filters(weight, turns).transpose(1, 2).flatten(0, 1)


def projection_filters(weight: Tensor, turns: Turns | Tensor) -> Tensor:
    """Return the bank of a projection, ``bank[o, i, h] = h.(weight[o, i])``: o i k k -> o (i h) k k."""
    return turn_filters(weight, turns).flatten(1, 2)


def pose_filters(weight: Tensor, turns: Turns | Tensor) -> Tensor:
    """Return the bank of a projection with one channel group per pose, ``bank[h, o, i] = h.(weight[o, i])``.

    o i k k -> (h o) i k k
    """
    return turn_filters(weight, turns).permute(2, 0, 1, 3, 4).flatten(0, 1)


def group_filters(weight: Tensor, turns: Turns | Tensor, relative: Tensor, *, channels_last: bool = False) -> Tensor:
    """Return the bank of a group convolution, ``bank[o, g, i, h] = g.(weight[o, i, relative[g, h]])``.

    o i t k k -> (o g) (i h) k k, where ``relative[g, h]`` is the slice of the relative pose g^-1 h. If the filter has
    fewer slices than the group has poses, the slice after the last one is zero. ``channels_last`` is the memory format
    of the bank: numbers are selected in its order, without a copy of the bank or of its gradient.
    """
    check_table("group_filters", "relative", relative, "(group, group)", 2)
    _check_weight("group_filters", weight, 3)
    if weight.shape[2] < len(relative):
        weight = F.pad(weight, (0, 0) * (weight.ndim - 3) + (0, 1))
    numbers, moves, k = _numbers("group_filters", weight, turns, 3)  # o i t n
    if len(moves) != len(relative):
        raise ValueError(
            f"group_filters expects tables of one group, got the turns of {len(moves)} poses and the relative poses of "
            f"{len(relative)}; build both for the same group."
        )
    poses, taps = moves.shape
    channels, slices, step = numbers.shape[1:]

    def index() -> Tensor:
        # The first number of every slice of a channel, and thereby of every channel.
        starts = torch.arange(0, channels * slices * step, step, device=weight.device).view(channels, slices)
        first = select("group_filters", starts, 1, relative).unflatten(1, relative.shape)  # i g h
        taken = first.transpose(0, 1)[..., None] + moves[:, None, None]  # g i h (k k)
        return taken.movedim(-1, 1) if channels_last else taken

    key = "group_filters", channels, slices, step, channels_last
    shape = (poses, taps, channels, poses) if channels_last else (poses, channels, poses, taps)
    rows = select("group_filters", numbers.flatten(1), 1, kept_index(moves, relative, key, index))
    bank = rows.reshape(-1, *shape[1:])
    if channels_last:
        return bank.flatten(2).unflatten(1, (k, k)).permute(0, 3, 1, 2)
    return bank.flatten(1, 2).unflatten(2, (k, k))


def table_filters(weight: Tensor, tables: GroupTables, groups: int, *, channels_last: bool = False) -> Tensor:
    """Return the bank of a group convolution with given tables: of all pairs of poses, or of blocks of poses.

    ``channels_last`` applies to all pairs of poses.
    """
    if tables.blocks is None:
        return group_filters(weight, tables.turns, tables.relative, channels_last=channels_last)
    slices, poses = tables.blocks.slices, tables.blocks.poses
    return tables.blocks.layout.filters(turned_slices(weight, tables.turns, slices, poses), groups)


def slice_filters(weight: Tensor, turns: Turns | Tensor, poses: Tensor) -> Tensor:
    """Return the bank of a slice-attentive convolution, with one channel group per input pose h.

    ``bank[h, o, t, i] = poses[h, t].(weight[o, i, t])``: o i t k k -> (h o t) i k k
    """
    check_table("slice_filters", "poses", poses, "(group, slices)", 2)
    slices = torch.arange(poses.shape[1], device=poses.device).expand(poses.shape)
    bank = turned_slices(weight, turns, slices, poses)  # o i h t k k
    return bank.permute(2, 0, 3, 1, 4, 5).flatten(0, 2)


def turn_filters(weight: Tensor, turns: Turns | Tensor) -> Tensor:
    """Return every filter in every pose: o i k k -> o i g k k."""
    numbers, moves, k = _numbers("turn_filters", weight, turns, 2)
    return select("turn_filters", numbers.flatten(0, 1), 1, moves).reshape(*weight.shape[:2], len(moves), k, k)


def turned_slices(weight: Tensor, turns: Turns | Tensor, slices: Tensor, poses: Tensor) -> Tensor:
    """Return slices of a filter in given poses, ``bank[o, i, a, b] = poses[a, b].(weight[o, i, slices[a, b]])``.

    o i t k k -> o i (shape of ``slices``) k k
    """
    numbers, moves, k = _numbers("turned_slices", weight, turns, 3)
    check_table("turned_slices", "slices", slices, "(a, b)")
    check_table("turned_slices", "poses", poses, "(a, b)")
    taps = select("turned_slices", moves, 0, poses).reshape(*poses.shape, -1)
    rows = numbers.flatten(2).flatten(0, 1)  # of two axes: torch selects from matrices several times faster
    bank = select("turned_slices", rows, 1, slices[..., None] * numbers.shape[-1] + taps)
    return bank.reshape(*weight.shape[:2], *slices.shape, k, k)


def _numbers(function: str, weight: Tensor, turns: Turns | Tensor, axes: int) -> tuple[Tensor, Tensor, int]:
    """Return the numbers of which the taps in every pose are permutations, the permutations, and the kernel's size.

    Filters are taps k x k, or coefficients, after a number of other axes.
    """
    names = _check_weight(function, weight, axes)
    moves, maps = turns if isinstance(turns, Turns) else Turns(turns)
    numbers = weight.flatten(axes)
    if not _fits(weight, moves, maps, numbers.shape[-1]):
        got = " and ".join(str(tuple(t.shape)) if isinstance(t, Tensor) else repr(t) for t in (moves, maps))
        raise ValueError(
            f"{function} expects square filters {names}, k, k), or coefficients {names}, n), and the turns of such "
            f"filters, integers (group, k * k) and maps to as many numbers, got filters {tuple(weight.shape)} and "
            f"turns {got}; pass Turns(*coattend.groups.coset_turns(group, kernel_size={weight.shape[-1]}, ...))."
        )
    if maps is not None:
        numbers = torch.matmul(numbers, maps.to(numbers.dtype).mT)
    return numbers, moves, math.isqrt(moves.shape[1])


def _check_weight(function: str, weight: Tensor, axes: int) -> str:
    """Require filters, k x k or coefficients after a number of other axes; return the names of these."""
    names = "(out, in" if axes == 2 else "(out, in, slices"
    steerable = isinstance(weight, Tensor) and weight.ndim == axes + 1
    check_tensor(function, "weight", weight, f"{names}, k, k)", axes + (1 if steerable else 2))
    return names


def _fits(weight: Tensor, moves: object, maps: Tensor | None, numbers: int) -> bool:
    if not isinstance(moves, Tensor) or moves.ndim != 2 or moves.is_floating_point():
        return False
    if maps is not None and (maps.ndim != 2 or maps.shape[1] != numbers):
        return False
    if numbers == weight.shape[-1] and maps is not None:  # coefficients
        return True
    return weight.shape[-2] == weight.shape[-1] and moves.shape[1] == numbers
