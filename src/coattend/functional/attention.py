"""Cyclic equivariant self-attention, generalised to any finite group ([RH20] Eqs. 5-11)."""

from __future__ import annotations

import torch
from torch import Tensor

from coattend.functional import formula, operators
from coattend.functional.checks import (
    MAP,
    check_attention,
    check_group,
    check_rows,
    check_slices,
    check_table,
    check_tensor,
    select,
)
from coattend.functional.registry import decomposes
from coattend.groups import FiniteGroup


def co_attention(x: Tensor, weights: Tensor, group: FiniteGroup) -> Tensor:
    """Weigh the responses of the poses relative to one another: ``mask * x``, [RH20] Eq. 8.

    Args:
        x: a map (batch, channels, group, height, width).
        weights: attention vectors (channels, group), from which the matrix is gathered so that the result is
            equivariant, or free matrices (channels, group, group), entry [h, g] relating source h to target g.
        group: the group of the third axis.
    """
    return attend(x, _checked_matrix(x, weights, group))


def co_attention_mask(x: Tensor, weights: Tensor, group: FiniteGroup) -> Tensor:
    """The mask of :func:`co_attention` alone: values in [0, 1], the largest along the group axis being 1."""
    return attention_mask(x, _checked_matrix(x, weights, group))


def attention_matrix(weights: Tensor, index: Tensor) -> Tensor:
    """Gather the matrices (channels, group, group) from the vectors (channels, group)."""
    check_tensor("attention_matrix", "weights", weights, "(channels, group)", 2)
    check_table("attention_matrix", "index", index, "(group, group)", 2)
    return select("attention_matrix", weights, 1, index).unflatten(1, index.shape)


def attention_index(group: FiniteGroup) -> Tensor:
    """``index[h, g] = g^-1 h``: the only matrices that commute with every left translation ([RH20] Eq. 9).

    For a cyclic group this is the circulant matrix.
    """
    check_group("attention_index", group)
    return torch.tensor(group.relative.T.copy())


def attend(x: Tensor, matrix: Tensor) -> Tensor:
    """``mask * x`` for matrices (channels, group, group), in one pass that saves nothing but x."""
    check_attention("attend", x, matrix)
    if decomposes(x):
        return formula.attend(x, matrix)
    return torch.ops.coattend.co_attention(x, matrix)


def attend_slices(planes: Tensor, matrix: Tensor, rows: list[int], channel_step: int) -> Tensor:
    """Attend to each slice on its own and sum the slices: see :func:`coattend.functional.operators.slice_attention`."""
    check_slices("attend_slices", planes, matrix, rows, channel_step)
    if decomposes(planes):
        if not torch.compiler.is_compiling():  # compilers cannot look into its cache; the operator calls it itself
            check_rows("attend_slices", tuple(rows), channel_step, planes.shape[1])
        index = operators.plane_index(planes, rows, channel_step)
        return formula.attend_slices(planes, matrix, index, len(rows) // matrix.shape[-1])
    return torch.ops.coattend.slice_attention(planes, matrix, rows, channel_step)


def attention_mask(x: Tensor, matrix: Tensor) -> Tensor:
    """``softmax(l) / max softmax(l)`` for logits ``l = x A / n``, that is ``exp(l - max l)`` ([RH20] Eqs. 6-8).

    Computed in float32 for narrower types, under autocast too: logits of large activations do not fit into them.
    """
    check_attention("attention_mask", x, matrix)
    return formula.mask(x, matrix)


def _checked_matrix(x: Tensor, weights: Tensor, group: FiniteGroup) -> Tensor:
    check_group("co_attention", group)
    check_tensor("co_attention", "x", x, MAP, 5)
    check_tensor("co_attention", "weights", weights, "(channels, group) or (channels, group, group)", 2, or_more=True)
    n = group.order
    if x.shape[2] != n:
        raise ValueError(
            f"co_attention expects a map (batch, channels, group={n}, height, width) for {group.name}, "
            f"got {tuple(x.shape)}."
        )
    channels = x.shape[1]
    if weights.shape == (channels, n):
        return attention_matrix(weights, attention_index(group).to(weights.device))
    if weights.shape == (channels, n, n):
        return weights
    raise ValueError(
        f"weights must be (channels={channels}, group={n}) or (channels={channels}, group={n}, group={n}) for a map "
        f"{tuple(x.shape)}, got {tuple(weights.shape)}."
    )
