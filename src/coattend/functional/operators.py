"""``torch.ops.coattend``: co-attention as operators that save nothing but their inputs.

The C++ kernels serve the CPU, the Triton kernels GPUs; where neither do, the same operators compute the plain formula.
Whatever the strides of the inputs, results are contiguous: compilers rely on the strides that the fake kernels promise.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from coattend.functional import formula, native
from coattend.functional.registry import LIBRARY, define, save_first_two


def co_attention(x: Tensor, matrix: Tensor) -> Tensor:
    """``mask * x``: x (batch, channels, group, height, width), matrix (channels, group, group)."""
    order, matrices = x.shape[2], matrix.unsqueeze(1)
    kernels = _kernels_for(x, matrices, range(order), order)
    if kernels is None:
        return formula.attend(x, matrix).contiguous()
    return kernels.forward(x, matrices, range(order), channel_step=order)


def co_attention_backward(grad: Tensor, x: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of :func:`co_attention` with respect to x and the matrix."""
    order, matrices = x.shape[2], matrix.unsqueeze(1)
    kernels = _kernels_for(x, matrices, range(order), order)
    if kernels is None:
        return _contiguous(formula.attend_gradients(grad, x, matrix))
    grad_x, grad_matrices = kernels.backward(grad, x, matrices, range(order), channel_step=order)
    return grad_x, grad_matrices.squeeze(1)


def slice_attention(planes: Tensor, matrix: Tensor, rows: list[int], channel_step: int) -> Tensor:
    """Attend to each slice on its own and sum the slices, without gathering them first.

    planes: (batch, channels * slices * group, height, width), that of (channel, slice, pose) being number
    ``channel * channel_step + rows[slice * group + pose]``; matrix: (channels * slices, group, group).
    Returns (batch, channels, group, height, width).
    """
    slices = len(rows) // matrix.shape[-1]
    matrices = matrix.unflatten(0, (-1, slices))
    kernels = _kernels_for(planes, matrices, rows, channel_step)
    if kernels is None:
        return formula.attend_slices(planes, matrix, plane_index(planes, rows, channel_step), slices).contiguous()
    return kernels.forward(planes, matrices, rows, channel_step)


def slice_attention_backward(
    grad: Tensor, planes: Tensor, matrix: Tensor, rows: list[int], channel_step: int
) -> tuple[Tensor, Tensor]:
    """The gradients of :func:`slice_attention` with respect to the planes and the matrix."""
    slices = len(rows) // matrix.shape[-1]
    matrices = matrix.unflatten(0, (-1, slices))
    kernels = _kernels_for(planes, matrices, rows, channel_step)
    if kernels is None:
        index = plane_index(planes, rows, channel_step)
        return _contiguous(formula.attend_slices_gradients(grad, planes, matrix, index, slices))
    grad_planes, grad_matrices = kernels.backward(grad, planes, matrices, rows, channel_step)
    return grad_planes, grad_matrices.flatten(0, 1)


def plane_index(planes: Tensor, rows: list[int], channel_step: int) -> Tensor:
    """The plane of each (channel, slice, pose), flattened."""
    channels = planes.shape[1] // len(rows)
    first = channel_step * torch.arange(channels, device=planes.device)
    return (first[:, None] + torch.tensor(rows, device=planes.device)).flatten()


def _kernels_for(planes: Tensor, matrices: Tensor, rows: Sequence[int], channel_step: int) -> ModuleType | None:
    """The module whose ``forward`` and ``backward`` serve these tensors, or None.

    Tensors that do not fit together are refused first: a kernel would read beyond them.
    """
    channels, slices, order, _ = matrices.shape
    count, last = channels * slices * order, (channels - 1) * channel_step + max(rows)
    if planes.shape[1:-2].numel() != count or last >= count or len(rows) != slices * order:
        raise ValueError(
            f"co-attention expects {count} planes per image for matrices {tuple(matrices.shape)} (channels, slices, "
            f"group, group), got a tensor {tuple(planes.shape)} and planes up to number {last}; pass matrices of as "
            "many channels and poses as the tensor has."
        )
    if native.serves(planes, order):
        return native
    if not planes.is_cuda:
        return None
    kernels = gpu_kernels(planes.device)
    served = kernels is not None and planes.dtype in kernels.TYPES and order <= kernels.LARGEST_ORDER
    return kernels if served else None


@functools.cache
def gpu_kernels(device: torch.device) -> ModuleType | None:
    """The Triton kernels, tried on a device, or None where they cannot be had; then one notice says so and why."""
    if os.environ.get("COATTEND_KERNELS") == "off":
        return None
    try:
        from coattend.functional import triton_kernels

        triton_kernels.try_on(device)
    except (ImportError, OSError, RuntimeError) as reason:
        native.logger.warning(
            "coattend: the fused co-attention kernel for GPUs is not available (%s). Results are the same, training "
            "with attention is slower; install triton and a C compiler, or set COATTEND_KERNELS=off to silence this.",
            str(reason).strip().partition("\n")[0],
        )
        return None
    return triton_kernels


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
