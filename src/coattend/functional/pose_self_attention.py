"""Self-attention over the poses of each position, with dot-product scores."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.functional.attention import without_autocast
from coattend.functional.checks import check_group, check_one_device, check_tensor
from coattend.functional.dispatch import decomposes
from coattend.functional.pose_linear import apply_bank, pose_bank, relative_table
from coattend.groups import FiniteGroup


def pose_self_attention(x: Tensor, weight: Tensor, bias: Tensor, group: FiniteGroup) -> Tensor:
    """Replace each pose by a mean of the values of all poses at its position, weighed by their scores.

    ``y[c, g] = sum_h softmax_h(q[g] . k[h] / sqrt(d) + bias[g^-1 h]) v[c, h]``, where queries q, keys k and values v
    are 1x1 group convolutions of x, and each head has its own d channels and its own bias.

    Args:
        x: a map (batch, channels, group, positions...).
        weight: (3 * channels, channels, group), of queries, keys and values one after another.
        bias: (heads, group); the number of heads divides the channels.
        group: the group of the third axis; it needs no action.

    >>> from coattend.groups import cyclic
    >>> pose_self_attention(torch.zeros(2, 6, 4, 5, 5), torch.zeros(18, 6, 4), torch.zeros(2, 4), cyclic(4)).shape
    torch.Size([2, 6, 4, 5, 5])
    """
    return attend_poses(x, *_checked_tables(x, weight, bias, group))


def pose_attention_weights(x: Tensor, weight: Tensor, bias: Tensor, group: FiniteGroup) -> Tensor:
    """Return the weights of :func:`pose_self_attention`: (batch, heads, group, group, positions...), pose g to pose h.

    They sum to 1 over the last of the two pose axes.
    """
    return attention_weights(x, *_checked_tables(x, weight, bias, group))


def bias_matrix(bias: Tensor, relative: Tensor) -> Tensor:
    """Return ``matrix[head, g, h] = bias[head, g^-1 h]``."""
    return bias.index_select(1, relative.flatten()).unflatten(1, relative.shape)


def attend_poses(x: Tensor, bank: Tensor, bias: Tensor) -> Tensor:
    """Compute :func:`pose_self_attention` from the bank of its weight and the matrices of :func:`bias_matrix`."""
    rows = _rows(x, bank, len(bias))
    if decomposes(x):
        y = attend_rows_formula(rows, bias)
    else:
        y, _ = without_autocast(torch.ops.coattend.pose_self_attention, rows, bias)
    planes = y.flatten(1).unflatten(0, (x.shape[0], -1)).transpose(1, 2)  # b (c g) p: channels-last
    return planes.unflatten(-1, x.shape[3:]).unflatten(1, x.shape[1:3])


def attention_weights(x: Tensor, bank: Tensor, bias: Tensor) -> Tensor:
    """Compute :func:`pose_attention_weights` from the bank and the matrices of :func:`bias_matrix`."""
    query, key, _ = _rows(x, bank, len(bias)).transpose(3, 4).unbind(1)
    logits = torch.matmul(query, key.transpose(2, 3)) * query.shape[-1] ** -0.5 + bias
    weights = logits.softmax(-1).unflatten(0, (x.shape[0], -1))  # b p head g h
    return weights.permute(0, 2, 3, 4, 1).unflatten(-1, x.shape[3:])


def attend_rows_formula(rows: Tensor, bias: Tensor) -> Tensor:
    """Attend at each position: rows (positions, 3, heads, channels, group) -> (positions, heads, channels, group)."""
    query, key, value = rows.transpose(3, 4).unbind(1)  # p head g d
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias.to(rows.dtype)).transpose(2, 3)


def attend_rows_gradients(grad: Tensor, rows: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the formula with respect to rows and bias, which can be differentiated again."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        rows, bias = (t if t.requires_grad else t.detach().requires_grad_() for t in (rows, bias))
        grad_rows, grad_bias = torch.autograd.grad(
            attend_rows_formula(rows, bias), (rows, bias), grad, create_graph=again, materialize_grads=True
        )  # without positions the formula does not use the bias
    return grad_rows, grad_bias


def _rows(x: Tensor, bank: Tensor, heads: int) -> Tensor:
    """Return queries, keys and values of each position, (batch * positions, 3, heads, channels, group)."""
    projected = apply_bank(x, bank).flatten(3).movedim(3, 1)  # b p c g: a view of a channels-last map
    return projected.flatten(0, 1).unflatten(1, (3, heads, -1))


def _checked_tables(x: Tensor, weight: Tensor, bias: Tensor, group: FiniteGroup) -> tuple[Tensor, Tensor]:
    name = "pose_self_attention"
    check_group(name, group)
    check_tensor(name, "x", x, "(batch, channels, group, positions...)", 4, or_more=True)
    check_tensor(name, "weight", weight, "(3 * channels, channels, group)", 3)
    check_tensor(name, "bias", bias, "(heads, group)", 2)
    check_one_device(name, x, weight, bias)
    channels, n = x.shape[1], group.order
    if weight.shape != (3 * channels, channels, n) or x.shape[2] != n or bias.shape[1] != n or channels % len(bias):
        raise ValueError(
            f"{name} expects a weight ({3 * channels}, {channels}, {n}) and a bias (heads, {n}), with heads that "
            f"divide the channels, for {group.name} and x {tuple(x.shape)}, got {tuple(weight.shape)} and "
            f"{tuple(bias.shape)}."
        )
    relative = relative_table(group).to(x.device)
    return pose_bank(weight, relative), bias_matrix(bias, relative)
