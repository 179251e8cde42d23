"""``torch.ops.coattend``: co-attention as operators that save nothing but their inputs.

The C++ kernels serve the CPU; where they do not, the same operators compute the plain formula. Whatever the strides of
the inputs, results are contiguous: compilers rely on the strides that the fake kernels promise.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coattend.functional import formula, native
from coattend.functional.registry import LIBRARY, define, save_first_two


def co_attention(x: Tensor, matrix: Tensor) -> Tensor:
    """``mask * x``: x (batch, channels, group, height, width), matrix (channels, group, group)."""
    order = x.shape[2]
    if not native.serves(x, order):
        return formula.attend(x, matrix).contiguous()
    return native.forward(x, matrix.unsqueeze(1), range(order), channel_step=order)


def co_attention_backward(grad: Tensor, x: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of :func:`co_attention` with respect to x and the matrix."""
    order = x.shape[2]
    if not native.serves(x, order):
        return _contiguous(formula.attend_gradients(grad, x, matrix))
    grad_x, grad_matrices = native.backward(grad, x, matrix.unsqueeze(1), range(order), channel_step=order)
    return grad_x, grad_matrices.squeeze(1)


def slice_attention(planes: Tensor, matrix: Tensor, rows: list[int], channel_step: int) -> Tensor:
    """Attend to each slice on its own and sum the slices, without gathering them first.

    planes: (batch, channels * slices * group, height, width), that of (channel, slice, pose) being number
    ``channel * channel_step + rows[slice * group + pose]``; matrix: (channels * slices, group, group).
    Returns (batch, channels, group, height, width).
    """
    order = matrix.shape[-1]
    slices = len(rows) // order
    if not native.serves(planes, order):
        return formula.attend_slices(planes, matrix, plane_index(planes, rows, channel_step), slices).contiguous()
    return native.forward(planes, matrix.unflatten(0, (-1, slices)), rows, channel_step)


def slice_attention_backward(
    grad: Tensor, planes: Tensor, matrix: Tensor, rows: list[int], channel_step: int
) -> tuple[Tensor, Tensor]:
    """The gradients of :func:`slice_attention` with respect to the planes and the matrix."""
    order = matrix.shape[-1]
    slices = len(rows) // order
    if not native.serves(planes, order):
        index = plane_index(planes, rows, channel_step)
        return _contiguous(formula.attend_slices_gradients(grad, planes, matrix, index, slices))
    matrices = matrix.unflatten(0, (-1, slices))
    grad_planes, grad_matrices = native.backward(grad, planes, matrices, rows, channel_step)
    return grad_planes, grad_matrices.flatten(0, 1)


def plane_index(planes: Tensor, rows: list[int], channel_step: int) -> Tensor:
    """The plane of each (channel, slice, pose), flattened."""
    channels = planes.shape[1] // len(rows)
    first = channel_step * torch.arange(channels, device=planes.device)
    return (first[:, None] + torch.tensor(rows, device=planes.device)).flatten()


def _contiguous(gradients: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return gradients[0].contiguous(), gradients[1].contiguous()


def _fake_slice_attention(planes: Tensor, matrix: Tensor, rows: list[int], channel_step: int) -> Tensor:
    channels, order = planes.shape[1] // len(rows), matrix.shape[-1]
    return planes.new_empty(planes.shape[0], channels, order, *planes.shape[2:])


def _fake_gradients(grad: Tensor, x: Tensor, matrix: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), matrix.new_empty(matrix.shape)


def _co_attention_formula(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, matrix = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: the gradient is to be differentiated again
        return formula.attend_gradients(grad, x, matrix)
    return torch.ops.coattend.co_attention_backward(grad, x, matrix)


def _slice_attention_formula(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    planes, matrix = ctx.saved_tensors
    rows, channel_step = ctx.rest
    if torch.is_grad_enabled():
        index = plane_index(planes, rows, channel_step)
        slices = len(rows) // matrix.shape[-1]
        return *formula.attend_slices_gradients(grad, planes, matrix, index, slices), None, None
    return *torch.ops.coattend.slice_attention_backward(grad, planes, matrix, rows, channel_step), None, None


define("co_attention(Tensor x, Tensor matrix) -> Tensor", co_attention, lambda x, matrix: x.new_empty(x.shape))
define(
    "co_attention_backward(Tensor grad, Tensor x, Tensor matrix) -> (Tensor, Tensor)",
    co_attention_backward,
    _fake_gradients,
)
define(
    "slice_attention(Tensor planes, Tensor matrix, int[] rows, int channel_step) -> Tensor",
    slice_attention,
    _fake_slice_attention,
)
define(
    "slice_attention_backward(Tensor grad, Tensor planes, Tensor matrix, int[] rows, int channel_step)"
    " -> (Tensor, Tensor)",
    slice_attention_backward,
    _fake_gradients,
)
torch.library.register_autograd(
    "coattend::co_attention", _co_attention_formula, setup_context=save_first_two, lib=LIBRARY
)
torch.library.register_autograd(
    "coattend::slice_attention", _slice_attention_formula, setup_context=save_first_two, lib=LIBRARY
)
