"""Co-attention in plain tensor operations: the reference, the fallback, and what is exported."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


def mask(x: Tensor, matrix: Tensor) -> Tensor:
    """``exp(l - max l)`` for logits ``l = x A / n``; x (batch, channels, group, height, width)."""
    return _without_autocast(_mask, x, matrix)


def attend(x: Tensor, matrix: Tensor) -> Tensor:
    """``mask * x``."""
    return _without_autocast(_attend, x, matrix)


def attend_gradients(grad: Tensor, x: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of :func:`attend` with respect to x and the matrix; differentiable in their turn."""
    return _without_autocast(_attend_gradients, grad, x, matrix)


def attend_slices(planes: Tensor, matrix: Tensor, index: Tensor, slices: int) -> Tensor:
    """Attend to each slice on its own and sum the slices.

    planes: (batch, channels * slices * group, height, width) in any order; matrix: (channels * slices, group, group);
    index: the plane of each (channel, slice, pose). Returns (batch, channels, group, height, width).
    """
    responses = planes.index_select(1, index).unflatten(1, (-1, matrix.shape[-1]))
    return attend(responses, matrix).unflatten(1, (-1, slices)).sum(dim=2)


def attend_slices_gradients(
    grad: Tensor, planes: Tensor, matrix: Tensor, index: Tensor, slices: int
) -> tuple[Tensor, Tensor]:
    """The gradients of :func:`attend_slices` with respect to the planes and the matrix."""
    responses = planes.index_select(1, index).unflatten(1, (-1, matrix.shape[-1]))
    per_slice = grad.repeat_interleave(slices, dim=1)
    grad_responses, grad_matrix = attend_gradients(per_slice, responses, matrix)
    return grad_responses.flatten(1, 2).index_select(1, index.argsort()), grad_matrix


def autocasts(x: Tensor) -> bool:
    """Whether autocast is on for the tensor's device; some devices (meta) do not know it."""
    device = x.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def _without_autocast(function: Callable[..., Result], *tensors: Tensor) -> Result:
    """Logits of large activations do not fit into narrow types, so autocast is kept out."""
    if autocasts(tensors[0]):
        with torch.autocast(tensors[0].device.type, enabled=False):
            return function(*tensors)
    return function(*tensors)


def _mask(x: Tensor, matrix: Tensor) -> Tensor:
    _, _, weights = _wide(x, matrix)
    return weights.to(x.dtype).reshape(x.shape)


def _attend(x: Tensor, matrix: Tensor) -> Tensor:
    return _mask(x, matrix) * x


def _attend_gradients(grad: Tensor, x: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    responses, logits, weights = _wide(x, matrix)
    order = x.shape[2]
    passed = weights * grad.reshape(responses.shape).to(responses.dtype)
    through_mask = passed * responses
    highest = (logits == logits.amax(dim=2, keepdim=True)).to(responses.dtype)
    shared = through_mask.sum(dim=2, keepdim=True) / highest.sum(dim=2, keepdim=True)
    grad_logits = through_mask - highest * shared
    grad_x = passed + torch.matmul(matrix.to(responses.dtype) / order, grad_logits)
    grad_matrix = torch.matmul(responses, grad_logits.mT).sum(0) / order
    return grad_x.to(x.dtype).reshape(x.shape), grad_matrix.to(matrix.dtype)


def _wide(x: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Responses (batch, channels, group, positions), logits and mask, in float32 or wider."""
    wide = torch.promote_types(x.dtype, torch.float32)
    batch, channels, order, height, width = x.shape
    responses = x.reshape(batch, channels, order, height * width).to(wide)
    logits = torch.matmul(matrix.transpose(1, 2).to(wide) / order, responses)  # the older ONNX exporter knows no mT
    return responses, logits, torch.exp(logits - logits.amax(dim=2, keepdim=True))
