"""``torch.ops.coattend``: co-attention as operators that save only their inputs for the backward pass.

The C++ kernels run on CPUs, the Triton kernels on GPUs; without them the operators compute the plain formula.
Results are channels-last if the map is, else contiguous: compilers rely on the strides that the fake kernels promise.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from coattend.functional._kernels import cpu
from coattend.functional._kernels import rows as row_kernels
from coattend.functional._kernels.build import logger
from coattend.functional._kernels.library import LIBRARY, define, save_first_two
from coattend.functional.attention import (
    attend_formula,
    attend_slices_formula,
    plane_index,
    wide_mask,
    without_autocast,
)
from coattend.functional.checks import check_attention, check_gradient, check_rows, check_slices
from coattend.functional.dispatch import differentiates_again
from coattend.functional.layout import empty_like, in_format_of


def co_attention(x: Tensor, matrix: Tensor) -> Tensor:
    """Return ``mask * x``: x (batch, channels, group, height, width), matrix (channels, group, group)."""
    check_attention("co_attention", x, matrix, is_planar=True)
    order = x.shape[2]
    kernels = _kernels_for(x, order)
    if kernels is None:
        return in_format_of(attend_formula(x, matrix), x)
    return in_format_of(kernels.forward(x, matrix.unsqueeze(1), range(order), channel_step=order), x)


def co_attention_backward(grad: Tensor, x: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of :func:`co_attention` with respect to x and the matrix."""
    check_attention("co_attention_backward", x, matrix, is_planar=True)
    check_gradient("co_attention_backward", grad, x.shape, x)
    order = x.shape[2]
    kernels = _kernels_for(x, order)
    if kernels is None:
        grad_x, grad_matrices = attend_gradients(grad, x, matrix)
        return in_format_of(grad_x, x), grad_matrices.contiguous()
    grad_x, grad_matrices = kernels.backward(grad, x, matrix.unsqueeze(1), range(order), channel_step=order)
    return in_format_of(grad_x, x), grad_matrices.squeeze(1)


def slice_attention(planes: Tensor, matrix: Tensor, rows: list[int], channel_step: int) -> Tensor:
    """Attend to each slice on its own and sum the slices: see :func:`coattend.functional.attention.attend_slices`."""
    check_slices("slice_attention", planes, matrix, rows, channel_step)
    check_rows("slice_attention", tuple(rows), channel_step, planes.shape[1])
    slices = len(rows) // matrix.shape[-1]
    matrices = matrix.unflatten(0, (-1, slices))
    kernels = _kernels_for(planes, matrix.shape[-1])
    if kernels is None:
        attended = attend_slices_formula(planes, matrix, plane_index(planes, rows, channel_step), slices)
        return in_format_of(attended, planes)
    return in_format_of(kernels.forward(planes, matrices, rows, channel_step), planes)


def slice_attention_backward(
    grad: Tensor, planes: Tensor, matrix: Tensor, rows: list[int], channel_step: int
) -> tuple[Tensor, Tensor]:
    """Return the gradients of :func:`slice_attention` with respect to the planes and the matrix."""
    check_slices("slice_attention_backward", planes, matrix, rows, channel_step)
    check_rows("slice_attention_backward", tuple(rows), channel_step, planes.shape[1])
    check_gradient("slice_attention_backward", grad, _attended_shape(planes, matrix, rows), planes)
    slices = len(rows) // matrix.shape[-1]
    matrices = matrix.unflatten(0, (-1, slices))
    kernels = _kernels_for(planes, matrix.shape[-1])
    if kernels is None:
        index = plane_index(planes, rows, channel_step)
        grad_planes, grad_matrices = attend_slices_gradients(grad, planes, matrix, index, slices)
        return in_format_of(grad_planes, planes), grad_matrices.contiguous()
    grad_planes, grad_matrices = kernels.backward(grad, planes, matrices, rows, channel_step)
    return in_format_of(grad_planes, planes), grad_matrices.flatten(0, 1)


def _kernels_for(planes: Tensor, order: int) -> ModuleType | None:
    """Return the module whose ``forward`` and ``backward`` support these tensors, or None.

    The kernels rely on checked arguments: they would read beyond tensors that do not fit together.
    """
    if row_kernels.supports(planes) and cpu.supports_order(order):
        return row_kernels
    if cpu.supports(planes, order):
        return cpu
    if not planes.is_cuda:
        return None
    kernels = gpu_kernels(planes.device)
    is_supported = kernels is not None and planes.dtype in kernels.TYPES and order <= kernels.LARGEST_ORDER
    return kernels if is_supported else None


@functools.cache
def gpu_kernels(device: torch.device) -> ModuleType | None:
    """Return the Triton kernels after a trial on the device, or None if unavailable; log the reason once.

    Triton compiles just in time, when a kernel is first launched.
    """
    if os.environ.get("COATTEND_KERNELS") == "off":
        return None
    try:
        from coattend.functional._kernels import triton

        triton.try_on(device)
    except (ImportError, OSError, RuntimeError) as reason:
        logger.warning(
            "coattend: the fused co-attention kernel for GPUs is not available (%s). Results are the same, training "
            "with attention is slower; install triton and a C compiler, or set COATTEND_KERNELS=off to silence this.",
            str(reason).strip().partition("\n")[0],
        )
        return None
    return triton


def _attended_shape(planes: Tensor, matrix: Tensor, rows: list[int]) -> tuple[int, ...]:
    return planes.shape[0], planes.shape[1] // len(rows), matrix.shape[-1], *planes.shape[2:]


def _fake_co_attention(x: Tensor, matrix: Tensor) -> Tensor:
    check_attention("co_attention", x, matrix, is_planar=True)
    return empty_like(x)


def _fake_co_attention_gradients(grad: Tensor, x: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    check_attention("co_attention_backward", x, matrix, is_planar=True)
    check_gradient("co_attention_backward", grad, x.shape, x)
    return empty_like(x), matrix.new_empty(matrix.shape)


def _fake_slice_attention(planes: Tensor, matrix: Tensor, rows: list[int], channel_step: int) -> Tensor:
    check_slices("slice_attention", planes, matrix, rows, channel_step)
    return empty_like(planes, _attended_shape(planes, matrix, rows))


def _fake_slice_attention_gradients(
    grad: Tensor, planes: Tensor, matrix: Tensor, rows: list[int], channel_step: int
) -> tuple[Tensor, Tensor]:
    check_slices("slice_attention_backward", planes, matrix, rows, channel_step)
    check_gradient("slice_attention_backward", grad, _attended_shape(planes, matrix, rows), planes)
    return empty_like(planes), matrix.new_empty(matrix.shape)


def _co_attention_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, matrix = ctx.saved_tensors
    if differentiates_again():
        return attend_gradients(grad, x, matrix)
    return torch.ops.coattend.co_attention_backward(grad, x, matrix)


def _slice_attention_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    planes, matrix = ctx.saved_tensors
    rows, channel_step = ctx.rest
    if differentiates_again():
        index = plane_index(planes, rows, channel_step)
        slices = len(rows) // matrix.shape[-1]
        return *attend_slices_gradients(grad, planes, matrix, index, slices), None, None
    return *torch.ops.coattend.slice_attention_backward(grad, planes, matrix, rows, channel_step), None, None


define("co_attention(Tensor x, Tensor matrix) -> Tensor", co_attention, _fake_co_attention)
define(
    "co_attention_backward(Tensor grad, Tensor x, Tensor matrix) -> (Tensor, Tensor)",
    co_attention_backward,
    _fake_co_attention_gradients,
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
    _fake_slice_attention_gradients,
)
torch.library.register_autograd(
    "coattend::co_attention", _co_attention_gradients, setup_context=save_first_two, lib=LIBRARY
)
torch.library.register_autograd(
    "coattend::slice_attention", _slice_attention_gradients, setup_context=save_first_two, lib=LIBRARY
)


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
