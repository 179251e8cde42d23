"""The C++ kernels for maps in channels-last format, called through ctypes; see rows.h."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from coattend.functional._kernels import cpu
from coattend.functional.layout import channels_last, empty_like, is_channels_last

TYPES = {torch.float32: "float", torch.bfloat16: "bfloat16"}
MOST_LANES = 16  # of a vector of any processor; filters that kernels read end with a whole one
VECTOR_ORDERS = (2, 4, 8)  # of groups whose attention is fused with a norm


class RowShape(ctypes.Structure):
    """``RowShape`` of rows.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "channels", "slices", "order")),
        ("sources", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("channel_step", "threads")),
    )


class ConvShape(ctypes.Structure):
    """``ConvShape`` of conv_tile.h, field by field."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in ("images", "height", "width", "poses", "channels", "columns", "kernel", "padding", "threads")
    )


class NormShape(ctypes.Structure):
    """``NormShape`` of rows_norm.cpp, field by field."""

    _fields_ = (("map", RowShape), ("training", ctypes.c_int64), ("relu", ctypes.c_int64), ("eps", ctypes.c_double))


class PoolShape(ctypes.Structure):
    """``RowPoolShape`` of rows_pool.cpp, field by field."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("images", "height", "width", "columns", "threads"))


class DropShape(ctypes.Structure):
    """``DropShape`` of rows_order.cpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("images", "pixels", "columns", "dropped")),
        ("factor", ctypes.c_double),
        ("threads", ctypes.c_int64),
    )


class OrderShape(ctypes.Structure):
    """``OrderShape`` of rows_order.cpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "columns")),
        ("sources", ctypes.c_void_p),
        ("threads", ctypes.c_int64),
    )


def supports(x: Tensor) -> bool:
    """Return whether the kernels take tensors like this one."""
    return x.device.type == "cpu" and x.dtype in TYPES and is_channels_last(x) and cpu.library() is not None


def forward(planes: Tensor, matrices: Tensor, rows: Sequence[int], channel_step: int) -> Tensor:
    """Attend and sum over the slices: see :func:`coattend.functional._kernels.cpu.forward`."""
    channels, _, order, _ = matrices.shape
    y = empty_like(planes, (len(planes), channels, order, *planes.shape[-2:]))
    matrices = matrices.float().contiguous()
    shape, offsets = _row_shape(planes, matrices, rows, channel_step)
    _call(f"{_kind(matrices)}_forward", planes, (planes, matrices, y), shape)
    del offsets
    return y


def backward(
    grad: Tensor, planes: Tensor, matrices: Tensor, rows: Sequence[int], channel_step: int
) -> tuple[Tensor, Tensor]:
    """Return the gradients of :func:`forward` with respect to the planes and the matrices."""
    grad = channels_last(grad.to(planes.dtype))
    wide = matrices.float().contiguous()
    grad_planes, grad_matrices = empty_like(planes), torch.empty_like(wide)
    shape, offsets = _row_shape(planes, wide, rows, channel_step)
    _call(f"{_kind(wide)}_backward", planes, (grad, planes, wide, grad_planes, grad_matrices), shape)
    del offsets
    return grad_planes, grad_matrices.to(matrices.dtype)


def norm_forward(
    x: Tensor,
    matrix: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: tuple[Tensor, Tensor] | None,
    eps: float,
    relu: bool,
    in_place: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalised map, after attention and before a ReLU if these are asked for, mean and variance."""
    z = x if in_place else empty_like(x)
    if statistics is None:
        mean, variance = (x.new_empty(x.shape[1], dtype=torch.float32) for _ in range(2))
    else:
        mean, variance = (value.float().contiguous() for value in statistics)
    tensors = (x, _floats(matrix), _floats(weight), _floats(bias), mean, variance, z)
    shape, offsets = _norm_shape(x, statistics is None, eps, relu)
    _call("norm_forward", x, tensors, shape)
    del offsets
    return z, mean, variance


def norm_backward(
    grad: Tensor,
    x: Tensor,
    z: Tensor | None,
    matrix: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    training: bool,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Return the gradients of :func:`norm_forward` with respect to x, the matrix, the weight and the bias.

    With ``z``, the map that it returned with attention and a ReLU, attention is computed once instead of twice.
    """
    grad = channels_last(grad.to(x.dtype))
    wide, mean, variance = _floats(matrix), mean.float().contiguous(), variance.float().contiguous()
    grad_x, grad_matrix = empty_like(x), None if wide is None else torch.empty_like(wide)
    grad_weight, grad_bias = torch.empty_like(mean), torch.empty_like(mean)
    tensors = (
        grad,
        x,
        None if z is None else channels_last(z.to(x.dtype)),
        wide,
        _floats(weight),
        _floats(bias),
        mean,
        variance,
        grad_x,
        grad_matrix,
        grad_weight,
        grad_bias,
    )
    shape, offsets = _norm_shape(x, training, eps, relu)
    _call("norm_backward", x, tensors, shape)
    del offsets
    return grad_x, grad_matrix, grad_weight, grad_bias


def pool_forward(x: Tensor) -> Tensor:
    """Return the maximum over 2x2 windows; height and width are even."""
    y = empty_like(x, (*x.shape[:-2], x.shape[-2] // 2, x.shape[-1] // 2))
    _call("rows_pool_forward", x, (x, y), _pool_shape(x))
    return y


def pool_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of :func:`pool_forward` with respect to x."""
    grad_x = empty_like(x)
    _call("rows_pool_backward", x, (channels_last(grad.to(x.dtype)), x, grad_x), _pool_shape(x))
    return grad_x


def drop(x: Tensor, draws: Tensor | None, mask: Tensor, dropped: int, factor: float) -> Tensor:
    """Multiply what is mask by the factor and the rest by 0.

    With draws, int16 in the order of torch's default format, ``mask`` (uint8, in the format of x) is written: 1 where a
    draw is at least ``dropped``; else it is read.
    """
    y = empty_like(x)
    images, pixels = len(x), x.shape[-2:].numel()
    shape = DropShape(images, pixels, x[0].numel() // pixels, dropped, factor, torch.get_num_threads())
    _call("drop", x, (x, draws, mask, y), shape)
    return y


def reorder(x: Tensor, index: Sequence[int]) -> Tensor:
    """Return the planes of an image in another order: plane i of the result is plane index[i] of x."""
    y = empty_like(x)
    sources = (ctypes.c_int64 * len(index))(*index)
    rows, columns = len(x) * x.shape[-2:].numel(), len(index)
    shape = OrderShape(rows, columns, ctypes.addressof(sources), torch.get_num_threads())
    _call("reorder", x, (x, y), shape)
    return y


def _kind(matrices: Tensor) -> str:
    return "rows" if matrices.shape[1] == 1 else "slices"


def _call(name: str, x: Tensor, tensors: Sequence[Tensor | None], shape: ctypes.Structure) -> None:
    kernel = getattr(cpu.library(), f"coattend_{name}_{TYPES[x.dtype]}")
    addresses = (ctypes.c_void_p(None if tensor is None else tensor.data_ptr()) for tensor in tensors)
    kernel(*addresses, ctypes.byref(shape))


def _row_shape(
    planes: Tensor, matrices: Tensor, rows: Sequence[int], channel_step: int
) -> tuple[RowShape, ctypes.Array[ctypes.c_int64]]:
    channels, slices, order, _ = matrices.shape
    offsets = (ctypes.c_int64 * len(rows))(*rows)
    positions = len(planes) * planes.shape[-2:].numel()
    return (
        RowShape(positions, channels, slices, order, ctypes.addressof(offsets), channel_step, torch.get_num_threads()),
        offsets,
    )


def row_order(x: Tensor) -> tuple[RowShape, ctypes.Array[ctypes.c_int64]]:
    """Return the order of the numbers of a channels-last map, and a table in it that has to live as long."""
    channels, order = x.shape[1:3]
    offsets = (ctypes.c_int64 * order)(*range(order))
    positions = len(x) * x.shape[-2:].numel()
    shape = RowShape(positions, channels, 1, order, ctypes.addressof(offsets), order, torch.get_num_threads())
    return shape, offsets


def _norm_shape(x: Tensor, training: bool, eps: float, relu: bool) -> tuple[NormShape, ctypes.Array[ctypes.c_int64]]:
    shape, offsets = row_order(x)
    return NormShape(shape, training, relu, eps), offsets


def _pool_shape(x: Tensor) -> PoolShape:
    height, width = x.shape[-2:]
    return PoolShape(len(x), height, width, x.shape[1:-2].numel(), torch.get_num_threads())


def _floats(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.float().contiguous()
