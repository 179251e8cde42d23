"""``torch.ops.coattend.slice_convolution``: a convolution on the group with co-attention to each slice of the filters.

The C++ kernel (slice_conv.cpp) computes the responses of all slices for a few lines at a time, attends to them and sums
them while they are in the cache, and computes them again for the gradients: they are never in memory as a whole.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.functional._kernels import cpu
from coattend.functional._kernels.attention import attend_slices_gradients
from coattend.functional._kernels.library import LIBRARY, define
from coattend.functional._kernels.rows import TYPES, ConvShape, RowShape
from coattend.functional.attention import attend_slices_formula, plane_index
from coattend.functional.checks import check_gradient, check_one_device, check_rows, check_tensor
from coattend.functional.dispatch import differentiates_again
from coattend.functional.layout import channels_last, empty_like, folded, in_format_of

LANES = 8  # of a vector: the kernel has no remainder of columns
ORDERS = (2, 4, 8)


class Shape(ctypes.Structure):
    """``SliceConvShape`` of slice_conv.cpp, field by field."""

    _fields_ = (("slices", RowShape), ("conv", ConvShape))


def slice_convolution(x: Tensor, bank: Tensor, matrix: Tensor, rows: list[int], padding: int) -> Tensor:
    """Convolve every input pose with the filters that read it, attend to each slice on its own and sum the slices.

    Args:
        x: a map (batch, in, group, height, width).
        bank: the filters (group * out * group, in, k, k), of the type of x or float32, see
            :func:`coattend.functional.filter_bank.slice_filters`.
        matrix: of co-attention, (out * group, group, group), of the type of the bank.
        rows: the plane of each slice and pose of the first output channel, see ``slice_tables``.
        padding: zeros around the map.

    Returns a map (batch, out, group, height', width').
    """
    shape = _checked_shape("slice_convolution", x, bank, matrix, rows, padding)
    check_rows("slice_convolution", tuple(rows), x.shape[2], len(bank))
    if not _has_kernel(x, bank, matrix):
        _, planes = _responses(x, bank, padding)
        index = plane_index(planes, rows, x.shape[2])
        return in_format_of(attend_slices_formula(planes, matrix.to(x.dtype), index, x.shape[2]), x)
    inner = channels_last(x)
    y = empty_like(inner, shape)
    _call("forward", (inner, bank.contiguous(), matrix.contiguous(), y), x, bank, rows, y, padding)
    return in_format_of(y, x)


def slice_convolution_backward(
    grad: Tensor, x: Tensor, bank: Tensor, matrix: Tensor, rows: list[int], padding: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of :func:`slice_convolution` with respect to x, the bank and the matrix."""
    shape = _checked_shape("slice_convolution_backward", x, bank, matrix, rows, padding)
    check_rows("slice_convolution_backward", tuple(rows), x.shape[2], len(bank))
    check_gradient("slice_convolution_backward", grad, shape, x)
    if not _has_kernel(x, bank, matrix):
        grad_x, grad_bank, grad_matrix = _gradients_formula(grad, x, bank, matrix, rows, padding)
        return in_format_of(grad_x, x), grad_bank.contiguous(), grad_matrix.contiguous()
    inner, above = channels_last(x), channels_last(grad.to(x.dtype))
    bank, matrix = bank.contiguous(), matrix.contiguous()
    grad_x, grad_bank, grad_matrix = empty_like(inner), torch.empty_like(bank), torch.empty_like(matrix)
    tensors = (above, inner, bank, matrix, grad_x, grad_bank, grad_matrix)
    _call("backward", tensors, x, bank, rows, above, padding)
    return in_format_of(grad_x, x), grad_bank, grad_matrix


def _has_kernel(x: Tensor, bank: Tensor, matrix: Tensor) -> bool:
    order = x.shape[2]
    return (
        x.dtype in TYPES
        and {bank.dtype, matrix.dtype} == {torch.float32}
        and x.device.type == "cpu"
        and order in ORDERS
        and len(bank) // order % LANES == 0
        and x.numel() > 0
        and cpu.library() is not None
    )


def _call(
    direction: str, tensors: tuple[Tensor, ...], x: Tensor, bank: Tensor, rows: list[int], y: Tensor, padding: int
) -> None:
    images, channels, order, height, width = x.shape
    offsets = (ctypes.c_int64 * len(rows))(*rows)
    positions, threads = images * y.shape[-2:].numel(), torch.get_num_threads()
    slices = RowShape(positions, y.shape[1], order, order, ctypes.addressof(offsets), order, threads)
    columns = len(bank) // order
    conv = ConvShape(images, height, width, order, channels, columns, bank.shape[-1], padding, threads)
    kernel = getattr(cpu.library(), f"coattend_slice_conv_{direction}_{TYPES[x.dtype]}")
    kernel(*(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors), ctypes.byref(Shape(slices, conv)))
    del offsets


def _checked_shape(
    name: str, x: Tensor, bank: Tensor, matrix: Tensor, rows: list[int], padding: int
) -> tuple[int, int, int, int, int]:
    """Return the shape of the result, and require tensors that fit together: the kernel would read beyond others."""
    check_tensor(name, "x", x, "(batch, in, group, height, width)", 5)
    check_tensor(name, "the bank", bank, "(group * out * group, in, k, k)", 4)
    check_tensor(name, "the matrix", matrix, "(out * group, group, group)", 3)
    check_one_device(name, x, bank, matrix)
    batch, channels, order, *size = x.shape
    (planes, inputs, k, other), targets = bank.shape, matrix.shape[0]
    fits = inputs == channels and k == other and k > 0 and padding >= 0 and targets % order == 0
    fits = fits and planes == targets * order and tuple(matrix.shape[1:]) == (order, order)
    down, across = (extent + 2 * padding - k + 1 for extent in size)
    if not fits or len(rows) != order**2 or down < 1 or across < 1:
        raise ValueError(
            f"{name} expects x (batch, in, group, height, width), a bank (group * out * group, in, k, k) that is not "
            f"larger than the padded map, matrices (out * group, group, group) and a row for each slice and pose, got "
            f"{tuple(x.shape)}, {tuple(bank.shape)}, {tuple(matrix.shape)}, {len(rows)} rows and padding={padding}; "
            "pass those of a SliceCoAttentiveConv2d."
        )
    return batch, targets // order, order, down, across


def _responses(x: Tensor, bank: Tensor, padding: int) -> tuple[Tensor, Tensor]:
    """Return the planes of a map, pose by pose, and the responses of all slices to them."""
    read = folded(x.transpose(1, 2))
    return read, F.conv2d(read, bank.to(x.dtype), padding=padding, groups=x.shape[2])


def _gradients_formula(
    grad: Tensor, x: Tensor, bank: Tensor, matrix: Tensor, rows: list[int], padding: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients by operations that can be differentiated again."""
    order = x.shape[2]
    read, planes = _responses(x, bank, padding)
    index = plane_index(planes, rows, order)
    grad_planes, grad_matrix = attend_slices_gradients(grad.to(x.dtype), planes, matrix.to(x.dtype), index, order)
    geometry = [1, 1], [padding] * 2, [1, 1], False, [0, 0], order
    grad_read, grad_bank, _ = torch.ops.aten.convolution_backward(
        grad_planes, read, bank.to(x.dtype), None, *geometry, [True, True, False]
    )
    grad_x = grad_read.unflatten(1, (order, -1)).transpose(1, 2)
    return grad_x, grad_bank.to(bank.dtype), grad_matrix.to(matrix.dtype)


def _fake(x: Tensor, bank: Tensor, matrix: Tensor, rows: list[int], padding: int) -> Tensor:
    return empty_like(x, _checked_shape("slice_convolution", x, bank, matrix, rows, padding))


def _fake_gradients(
    grad: Tensor, x: Tensor, bank: Tensor, matrix: Tensor, rows: list[int], padding: int
) -> tuple[Tensor, Tensor, Tensor]:
    shape = _checked_shape("slice_convolution_backward", x, bank, matrix, rows, padding)
    check_gradient("slice_convolution_backward", grad, shape, x)
    return empty_like(x), bank.new_empty(bank.shape), matrix.new_empty(matrix.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.rest = inputs[3:]


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    formula = _gradients_formula if differentiates_again() else torch.ops.coattend.slice_convolution_backward
    return *formula(grad, *ctx.saved_tensors, *ctx.rest), None, None


define(
    "slice_convolution(Tensor x, Tensor bank, Tensor matrix, int[] rows, int padding) -> Tensor",
    slice_convolution,
    _fake,
)
define(
    "slice_convolution_backward(Tensor grad, Tensor x, Tensor bank, Tensor matrix, int[] rows, int padding)"
    " -> (Tensor, Tensor, Tensor)",
    slice_convolution_backward,
    _fake_gradients,
)
torch.library.register_autograd("coattend::slice_convolution", _gradients, setup_context=_save, lib=LIBRARY)
