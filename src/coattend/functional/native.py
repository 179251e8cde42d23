"""The C++ kernels, called through ctypes."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from coattend.functional import kernel_cache
from coattend.functional.kernel_cache import logger

TYPES = {torch.float32: "float", torch.float64: "double"}

FUNCTIONS = (
    "coattend_largest_order",
    *(f"coattend_{step}ward_{name}" for step in ("for", "back", "pool_for", "pool_back") for name in TYPES.values()),
)


class Shape(ctypes.Structure):
    """``Shape`` of kernels.cpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "channels", "slices", "order", "pixels")),
        *((name, ctypes.c_int64) for name in ("batch_step", "channel_step")),
        ("rows", ctypes.c_void_p),
        ("threads", ctypes.c_int64),
    )


class PoolShape(ctypes.Structure):
    """``PoolShape`` of kernels.cpp, field by field."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("planes", "height", "width", "threads"))


def serves_type(x: Tensor) -> bool:
    """Whether the kernels take tensors like this one; the first time it is asked, they are built."""
    return x.device.type == "cpu" and x.dtype in TYPES and library() is not None


def serves(x: Tensor, order: int) -> bool:
    """Whether the kernels attend along a group of this order."""
    if not serves_type(x):
        return False
    kernels = library()
    return kernels is not None and order <= kernels.coattend_largest_order()


def forward(planes: Tensor, matrices: Tensor, rows: Sequence[int], channel_step: int) -> Tensor:
    """Attend and sum over the slices: planes (batch, ..., height, width), matrices (channels, slices, order, order).

    Plane ``channel * channel_step + rows[slice * order + pose]`` of each image holds the responses of that pose.
    Returns (batch, channels, order, height, width).
    """
    planes, matrices = planes.contiguous(), matrices.to(planes.dtype).contiguous()
    channels, _, order, _ = matrices.shape
    y = planes.new_empty(len(planes), channels, order, *planes.shape[-2:])
    _run("forward", (planes, matrices, y), planes, matrices, rows, channel_step)
    return y


def backward(
    grad: Tensor, planes: Tensor, matrices: Tensor, rows: Sequence[int], channel_step: int
) -> tuple[Tensor, Tensor]:
    """The gradients of :func:`forward` with respect to the planes and the matrices."""
    planes, same = planes.contiguous(), matrices.to(planes.dtype).contiguous()
    grad_planes = torch.empty_like(planes)
    grad_matrices = planes.new_empty(len(planes), *matrices.shape)
    tensors = (grad.to(planes.dtype).contiguous(), planes, same, grad_planes, grad_matrices)
    _run("backward", tensors, planes, same, rows, channel_step)
    return grad_planes, grad_matrices.sum(0).to(matrices.dtype)


def pool_forward(x: Tensor) -> Tensor:
    """The maximum over windows of 2x2; height and width are even."""
    x = x.contiguous()
    y = x.new_empty(*x.shape[:-2], x.shape[-2] // 2, x.shape[-1] // 2)
    _pool("forward", (x, y), x)
    return y


def pool_backward(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of :func:`pool_forward` with respect to x."""
    x = x.contiguous()
    grad_x = torch.empty_like(x)
    _pool("backward", (grad.to(x.dtype).contiguous(), x, grad_x), x)
    return grad_x


def _pool(direction: str, tensors: tuple[Tensor, ...], x: Tensor) -> None:
    height, width = x.shape[-2:]
    kernel = getattr(library(), f"coattend_pool_{direction}_{TYPES[x.dtype]}")
    shape = PoolShape(x.shape[:-2].numel(), height, width, torch.get_num_threads())
    kernel(*(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors), ctypes.byref(shape))


def _run(
    direction: str,
    tensors: tuple[Tensor, ...],
    planes: Tensor,
    matrices: Tensor,
    rows: Sequence[int],
    channel_step: int,
) -> None:
    kernel = getattr(library(), f"coattend_{direction}_{TYPES[planes.dtype]}")
    channels, slices, order, _ = matrices.shape
    pixels, count = planes.shape[-2:].numel(), channels * slices * order
    offsets = (ctypes.c_int64 * len(rows))(*(row * pixels for row in rows))
    shape = Shape(
        batch=len(planes),
        channels=channels,
        slices=slices,
        order=order,
        pixels=pixels,
        batch_step=count * pixels,
        channel_step=channel_step * pixels,
        rows=ctypes.addressof(offsets),
        threads=torch.get_num_threads(),
    )
    kernel(*(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors), ctypes.byref(shape))


@functools.cache
def library() -> ctypes.CDLL | None:
    """The loaded kernels, or None where they cannot be had; then one notice says so and why."""
    if os.environ.get("COATTEND_KERNELS") == "off":
        return None
    try:
        try:
            return _loaded(kernel_cache.kernels())
        except OSError:  # a library that does not load here, though it is as it was built: of another system, perhaps
            return _loaded(kernel_cache.kernels(rebuild=True))
    except (OSError, subprocess.SubprocessError) as reason:
        # Logged rather than warned: nothing is wrong with the results, and `python -W error` must not stop on it.
        logger.warning(
            "coattend: the fused co-attention kernel is not available (%s). Results are the same, training with "
            "attention is slower; set COATTEND_KERNELS=off to silence this.",
            _first_line(reason),
        )
        return None


def _loaded(path: Path) -> ctypes.CDLL:
    kernels = ctypes.CDLL(str(path), mode=os.RTLD_NOW)
    for name in FUNCTIONS:
        if not hasattr(kernels, name):
            raise OSError(f"{path} has no function {name}")
    kernels.coattend_largest_order.restype = ctypes.c_int64
    return kernels


def _first_line(reason: Exception) -> str:
    text = getattr(reason, "stderr", None) or str(reason)
    return text.strip().partition("\n")[0]
