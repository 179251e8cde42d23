"""Cyclic equivariant self-attention, generalised to any finite group ([RH20] Eqs. 5-11)."""

from __future__ import annotations

import torch
from torch import Tensor

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
    return weights[:, index]


def attention_index(group: FiniteGroup) -> Tensor:
    """``index[h, g] = g^-1 h``: the only matrices that commute with every left translation ([RH20] Eq. 9).

    For a cyclic group this is the circulant matrix.
    """
    return torch.tensor(group.relative.T.copy())


def attend(x: Tensor, matrix: Tensor) -> Tensor:
    """``mask * x`` for matrices (channels, group, group)."""
    return attention_mask(x, matrix) * x


def attention_mask(x: Tensor, matrix: Tensor) -> Tensor:
    """``softmax(l) / max softmax(l)`` for logits ``l = x A / n``, that is ``exp(l - max l)`` ([RH20] Eqs. 6-8).

    Computed in float32 for narrower types, under autocast too: logits of large activations do not fit into them.
    """
    if autocasts(x):
        with torch.autocast(x.device.type, enabled=False):
            return _mask(x, matrix)
    return _mask(x, matrix)


def autocasts(x: Tensor) -> bool:
    """Whether autocast is on for the tensor's device; some devices (meta) do not know it."""
    device = x.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def _mask(x: Tensor, matrix: Tensor) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    batch, channels, order, height, width = x.shape
    responses = x.reshape(batch, channels, order, height * width)
    logits = torch.matmul(matrix.mT.to(wide) / order, responses.to(wide))
    mask = torch.exp(logits - logits.amax(dim=2, keepdim=True))
    return mask.to(x.dtype).reshape(x.shape)


def _checked_matrix(x: Tensor, weights: Tensor, group: FiniteGroup) -> Tensor:
    n = group.order
    if x.ndim != 5 or x.shape[2] != n:
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
