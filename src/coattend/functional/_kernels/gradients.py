"""Gradients of the formulas of co-attention: differentiable in turn, and the fallback where no kernel is available."""

from __future__ import annotations

import torch
from torch import Tensor

from coattend.functional.attention import wide_mask, without_autocast


def attend_gradients(grad: Tensor, x: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of ``attend_formula`` with respect to x and the matrix."""
    return without_autocast(_attend_gradients, grad, x, matrix)


def attend_slices_gradients(
    grad: Tensor, planes: Tensor, matrix: Tensor, index: Tensor, slices: int
) -> tuple[Tensor, Tensor]:
    """Return the gradients of ``attend_slices_formula`` with respect to the planes and the matrix."""
    responses = planes.index_select(1, index).unflatten(1, (-1, matrix.shape[-1]))
    per_slice = grad.repeat_interleave(slices, dim=1)
    grad_responses, grad_matrix = attend_gradients(per_slice, responses, matrix)
    return grad_responses.flatten(1, 2).index_select(1, index.argsort()), grad_matrix


def _attend_gradients(grad: Tensor, x: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    responses, logits, mask = wide_mask(x, matrix)
    order = x.shape[2]
    direct = mask * grad.reshape(responses.shape).to(responses.dtype)
    through_mask = direct * responses
    is_largest = (logits == logits.amax(dim=2, keepdim=True)).to(responses.dtype)
    share = through_mask.sum(dim=2, keepdim=True) / is_largest.sum(dim=2, keepdim=True)
    grad_logits = through_mask - is_largest * share
    grad_x = direct + torch.matmul(matrix.to(responses.dtype) / order, grad_logits)
    grad_matrix = torch.matmul(responses, grad_logits.mT).sum(0) / order
    return grad_x.to(x.dtype).reshape(x.shape), grad_matrix.to(matrix.dtype)
