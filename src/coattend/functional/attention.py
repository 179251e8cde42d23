"""Cyclic equivariant self-attention, generalised to any finite group ([RH20] Eqs. 5-11).

The functions whose names end in ``_formula`` are the reference in plain tensor operations, which is also what is
exported; the others check their arguments and may call a fused operator instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from coattend.functional.checks import (
    PLANES,
    check_attention,
    check_group,
    check_rows,
    check_slices,
    check_table,
    check_tensor,
    select,
)
from coattend.functional.dispatch import autocasts, decomposes, replicated
from coattend.functional.fourier import attend_rotations, is_faster, rotations
from coattend.groups import FiniteGroup
from coattend.groups.axes import axis_names

Result = TypeVar("Result")


def co_attention(x: Tensor, weights: Tensor, group: FiniteGroup) -> Tensor:
    """Weigh the responses of the poses relative to one another: ``mask * x``, [RH20] Eq. 8.

    Args:
        x: a map (batch, channels, group, height, width), with as many spatial axes as the group's action has.
        weights: attention vectors (channels, group), from which the matrix is gathered so that the result is
            equivariant, or free matrices (channels, group, group), entry [h, g] relating source h to target g.
        group: the group of the third axis.
    """
    return attend(x, _checked_matrix(x, weights, group), group if weights.ndim == 2 else None)


def co_attention_mask(x: Tensor, weights: Tensor, group: FiniteGroup) -> Tensor:
    """Return the mask of :func:`co_attention`: values in [0, 1], the largest along the group axis being 1."""
    return attention_mask(x, _checked_matrix(x, weights, group))


def attention_matrix(weights: Tensor, index: Tensor) -> Tensor:
    """Gather the matrices (channels, group, group) from the vectors (channels, group)."""
    check_tensor("attention_matrix", "weights", weights, "(channels, group)", 2)
    check_table("attention_matrix", "index", index, "(group, group)", 2)
    return select("attention_matrix", weights, 1, index).unflatten(1, index.shape)


def attention_index(group: FiniteGroup) -> Tensor:
    """Return ``index[h, g] = g^-1 h``: the only matrices that commute with every left translation ([RH20] Eq. 9).

    For a cyclic group this is the circulant matrix.
    """
    check_group("attention_index", group)
    return torch.tensor(group.relative.T.copy())


def attend(x: Tensor, matrix: Tensor, group: FiniteGroup | None = None) -> Tensor:
    """Return ``mask * x`` for matrices (channels, group, group), in one pass that saves only its inputs.

    ``group`` states that the matrices are gathered from vectors by :func:`attention_index`.
    """
    check_attention("attend", x, matrix)
    if group is not None and is_faster(x, group):
        return without_autocast(attend_rotations, x, matrix, rotations(group))
    if decomposes(x):
        return attend_formula(x, matrix)
    if x.ndim != 5:  # the operator has two spatial axes
        return torch.ops.coattend.co_attention(x.flatten(3).unsqueeze(-1), matrix).reshape(x.shape)
    return torch.ops.coattend.co_attention(x, matrix)


def attend_slices(planes: Tensor, matrix: Tensor, rows: list[int], channel_step: int) -> Tensor:
    """Attend to each slice on its own and sum the slices, without gathering them first.

    Args:
        planes: (batch, channels * slices * group, height, width); the plane of (channel, slice, pose) is number
            ``channel * channel_step + rows[slice * group + pose]``.
        matrix: (channels * slices, group, group).
        rows: the plane of each slice and pose of the first channel.
        channel_step: the distance in planes from one channel to the next.

    Returns (batch, channels, group, height, width).
    """
    check_slices("attend_slices", planes, matrix, rows, channel_step)
    if decomposes(planes):
        if not torch.compiler.is_compiling():  # compilers cannot look into its cache; the operator calls it itself
            check_rows("attend_slices", tuple(rows), channel_step, planes.shape[1])
        index = plane_index(planes, rows, channel_step)
        return attend_slices_formula(planes, matrix, index, len(rows) // matrix.shape[-1])
    return torch.ops.coattend.slice_attention(planes, matrix, rows, channel_step)


def attention_mask(x: Tensor, matrix: Tensor) -> Tensor:
    """Return ``softmax(l) / max softmax(l)`` for logits ``l = x A / n``, that is ``exp(l - max l)`` ([RH20] Eqs. 6-8).

    Computed in float32 for narrower types, under autocast too: logits of large activations do not fit into them.
    """
    check_attention("attention_mask", x, matrix)
    return mask_formula(x, matrix)


def plane_index(planes: Tensor, rows: list[int], channel_step: int) -> Tensor:
    """Return the number of the plane of each (channel, slice, pose), flattened; see :func:`attend_slices`."""
    check_tensor("plane_index", "planes", planes, PLANES, 4)
    if not rows:
        raise ValueError("plane_index expects at least one row, got none; pass one for each slice and pose.")
    channels = planes.shape[1] // len(rows)
    first = channel_step * torch.arange(channels, device=planes.device)
    return replicated((first[:, None] + torch.tensor(rows, device=planes.device)).flatten(), like=planes)


def mask_formula(x: Tensor, matrix: Tensor) -> Tensor:
    """Return ``exp(l - max l)`` for logits ``l = x A / n``; x (batch, channels, group, positions...)."""
    return without_autocast(_mask, x, matrix)


def attend_formula(x: Tensor, matrix: Tensor) -> Tensor:
    """Return ``mask * x``."""
    return without_autocast(lambda x, matrix: _mask(x, matrix) * x, x, matrix)


def attend_slices_formula(planes: Tensor, matrix: Tensor, index: Tensor, slices: int) -> Tensor:
    """Gather the slices by ``index``, the plane of each (channel, slice, pose); attend to each and sum them."""
    responses = planes.index_select(1, index).unflatten(1, (-1, matrix.shape[-1]))
    return attend_formula(responses, matrix).unflatten(1, (-1, slices)).sum(dim=2)


def without_autocast(function: Callable[..., Result], *tensors: Any) -> Result:
    """Call a function outside of autocast: logits of large activations do not fit into narrow types."""
    if autocasts(tensors[0]):
        with torch.autocast(tensors[0].device.type, enabled=False):
            return function(*tensors)
    return function(*tensors)


def wide_mask(x: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return responses (batch, channels, group, positions), logits and mask, in float32 or wider."""
    wide = torch.promote_types(x.dtype, torch.float32)
    order = x.shape[2]
    responses = x.flatten(3).to(wide)
    logits = torch.matmul(matrix.transpose(1, 2).to(wide) / order, responses)  # the older ONNX exporter knows no mT
    return responses, logits, torch.exp(logits - logits.amax(dim=2, keepdim=True))


def _mask(x: Tensor, matrix: Tensor) -> Tensor:
    _, _, mask = wide_mask(x, matrix)
    return mask.to(x.dtype).reshape(x.shape)


def attention_matrices(function: str, weights: Tensor, channels: int, group: FiniteGroup) -> Tensor:
    """Return the matrices (channels, group, group) for weights that are vectors or matrices."""
    check_tensor(function, "weights", weights, "(channels, group) or (channels, group, group)", 2, or_more=True)
    n = group.order
    if weights.shape == (channels, n):
        return attention_matrix(weights, attention_index(group).to(weights.device))
    if weights.shape == (channels, n, n):
        return weights
    raise ValueError(
        f"{function} expects weights of co-attention (channels={channels}, group={n}) or (channels={channels}, "
        f"group={n}, group={n}), got {tuple(weights.shape)}."
    )


def _checked_matrix(x: Tensor, weights: Tensor, group: FiniteGroup) -> Tensor:
    check_group("co_attention", group)
    axes = axis_names(group.dimension)
    expected = f"(batch, channels, group={group.order}, {', '.join(axes)})"
    check_tensor("co_attention", "x", x, expected, 3 + len(axes))
    if x.shape[2] != group.order:
        raise ValueError(f"co_attention expects a map {expected} for {group.name}, got {tuple(x.shape)}.")
    return attention_matrices("co_attention", weights, x.shape[1], group)
