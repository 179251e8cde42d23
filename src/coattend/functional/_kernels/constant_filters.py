"""Convolution of every plane with a filter of its own, as ``torch.ops.coattend.filter_positions`` does it for filters
that are the same at all positions.

Maps are (batch, height, width, planes) in memory.
"""

from __future__ import annotations

import ctypes

import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.functional._kernels import cpu
from coattend.functional._kernels.rows import MOST_LANES, TYPES


class Shape(ctypes.Structure):
    """``ConstantShape`` of constant_filters.cpp, field by field."""

    _fields_ = tuple(
        (name, ctypes.c_int64) for name in ("batch", "height", "width", "planes", "columns", "kernel", "threads")
    )


def supports(v: Tensor) -> bool:
    """Return whether the kernels take a map like this one."""
    return v.device.type == "cpu" and v.dtype in TYPES and v.numel() > 0 and cpu.library() is not None


def filter_planes(v: Tensor, filters: Tensor) -> Tensor:
    """Filter a map (batch, height, width, channels, group) with filters (slices, k * k, group) that slices share."""
    y = torch.empty_like(v)
    _run("forward", v, (v, _by_plane(v, filters), y), filters)
    return y


def filter_planes_backward(grad: Tensor, v: Tensor, filters: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of :func:`filter_planes` for v and the filters."""
    grad_v, by_plane = torch.empty_like(v), _by_plane(v, filters)
    partial = by_plane.new_empty(len(v), *by_plane.shape)
    _run("backward", v, (grad, v, by_plane, grad_v, partial), filters)
    slices, taps, order = filters.shape
    planes = v.shape[3] * order
    summed = partial.sum(0)[:, :planes].reshape(taps, slices, -1, order).sum(2)
    return grad_v, summed.transpose(0, 1).to(filters.dtype)


def _by_plane(v: Tensor, filters: Tensor) -> Tensor:
    """Return the filter of each plane, (k * k, planes), with zeros up to whole vectors."""
    slices, taps, order = filters.shape
    shared = filters.float().transpose(0, 1)[:, :, None].expand(taps, slices, v.shape[3] // slices, order)
    return F.pad(shared.reshape(taps, -1), (0, -v.shape[3] * order % MOST_LANES)).contiguous()


def _run(direction: str, v: Tensor, tensors: tuple[Tensor, ...], filters: Tensor) -> None:
    batch, height, width, channels, order = v.shape
    planes = channels * order
    columns, kernel = planes + -planes % MOST_LANES, round(filters.shape[1] ** 0.5)
    shape = Shape(batch, height, width, planes, columns, kernel, torch.get_num_threads())
    function = getattr(cpu.library(), f"coattend_constant_{direction}_{TYPES[v.dtype]}")
    function(*(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors), ctypes.byref(shape))
