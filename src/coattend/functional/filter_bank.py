"""Banks of turned filters: what a plain convolution needs to convolve on a group.

``turns`` is what :func:`coattend.groups.filter_turns` returns; ``relative[g, h] = g^-1 h``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coattend.functional.checks import check_table, check_tensor, select


def turn_filters(weight: Tensor, turns: Tensor) -> Tensor:
    """Every filter in every pose: (..., k, k) -> (..., group, k, k)."""
    check_tensor("turn_filters", "weight", weight, "(..., k, k)", 2, or_more=True)
    _check_turns("turn_filters", weight, turns)
    taps = weight.flatten(-2)
    if turns.is_floating_point():
        turned = torch.einsum("...p,gqp->...gq", taps, turns.to(taps.dtype))
    else:
        turned = select("turn_filters", taps, -1, turns)
    return turned.reshape(*weight.shape[:-2], len(turns), *weight.shape[-2:])


def group_filters(weight: Tensor, turns: Tensor, relative: Tensor) -> Tensor:
    """The bank of a group convolution, ``bank[o, g, i, h] = g.(weight[o, i, g^-1 h])``.

    (out, in, group, k, k) -> (out, group, in, group, k, k)
    """
    check_table("group_filters", "relative", relative, "(group, group)", 2)
    poses = torch.arange(len(relative), device=relative.device)[:, None]
    return turned_slices(weight, turns, relative, poses).transpose(1, 2).contiguous()


def turned_slices(weight: Tensor, turns: Tensor, slices: Tensor, poses: Tensor) -> Tensor:
    """Slices of a filter on the group in chosen poses, ``bank[o, i, a, b] = poses[a, b].(weight[o, i, slices[a, b]])``.

    (out, in, slices, k, k) -> (out, in, *slices.shape, k, k)
    """
    check_tensor("turned_slices", "weight", weight, "(out, in, slices, k, k)", 5)
    _check_turns("turned_slices", weight, turns)
    check_table("turned_slices", "slices", slices, "(a, b)")
    check_table("turned_slices", "poses", poses, "(a, b)")
    out_channels, in_channels, number, k, _ = weight.shape
    if turns.is_floating_point():
        # Every slice in every pose by one product of matrices, then a permutation: [slice, pose] -> [a, b].
        turned = torch.matmul(weight.flatten(3), turns.to(weight.dtype).flatten(0, 1).mT)
        index = slices * len(turns) + poses
        every = turned.reshape(out_channels, in_channels, number * len(turns), k**2)
        bank = select("turned_slices", every, 2, index)
    else:
        posed = select("turned_slices", turns, 0, poses).reshape(*poses.shape, -1)
        bank = select("turned_slices", weight.flatten(2), 2, slices[..., None] * k**2 + posed)
    return bank.reshape(out_channels, in_channels, *slices.shape, k, k)


def _check_turns(function: str, weight: Tensor, turns: Tensor) -> None:
    """Require square filters and the maps of such filters."""
    k = weight.shape[-1]
    if (
        not isinstance(turns, Tensor)
        or weight.shape[-2] != k
        or turns.ndim != (3 if turns.is_floating_point() else 2)
        or any(size != k**2 for size in turns.shape[1:])
    ):
        got = tuple(turns.shape) if isinstance(turns, Tensor) else repr(turns)
        raise ValueError(
            f"{function} expects square filters (..., k, k) and the turns of such filters, integers (group, k * k) or "
            f"numbers (group, k * k, k * k), got filters {tuple(weight.shape)} and turns {got}; pass "
            f"coattend.groups.filter_turns(group, kernel_size={k})."
        )
