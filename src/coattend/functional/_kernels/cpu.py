"""The C++ kernels, called through ctypes.

Compiling is an explicit step, :func:`build_library`; everything else uses a library that has been built.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from coattend.functional._kernels import build
from coattend.functional._kernels.build import logger
from coattend.functional._kernels.formats import channels_last_is_faster, measure_formats

TYPES = {torch.float32: "float", torch.float64: "double"}

ROW_FUNCTIONS = (
    *(f"{name}_{step}ward" for name in ("rows", "norm", "rows_pool") for step in ("for", "back")),
    "drop",
    "reorder",
    "image_gradient",
    "image_filters",
    "conv_attention",
    "conv_statistics",
)
FUNCTIONS = (
    "coattend_largest_order",
    "coattend_multiplies_bfloat16",
    *(f"coattend_{step}ward_{name}" for step in ("for", "back", "pool_for", "pool_back") for name in TYPES.values()),
    *(f"coattend_{name}_{dtype}" for name in ROW_FUNCTIONS for dtype in ("float", "bfloat16")),
    *(
        f"coattend_{name}_{step}ward_{dtype}"
        for name in ("slice_conv", "constant")
        for step in ("for", "back")
        for dtype in ("float", "bfloat16")
    ),
)


class Shape(ctypes.Structure):
    """``Shape`` of planes.cpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "channels", "slices", "order", "pixels")),
        *((name, ctypes.c_int64) for name in ("batch_step", "channel_step")),
        ("rows", ctypes.c_void_p),
        ("threads", ctypes.c_int64),
    )


class PoolShape(ctypes.Structure):
    """``PoolShape`` of planes.cpp, field by field."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("planes", "height", "width", "threads"))


def supports_dtype(x: Tensor) -> bool:
    """Return whether the kernels take tensors like this one."""
    return x.device.type == "cpu" and x.dtype in TYPES and library() is not None


def supports(x: Tensor, order: int) -> bool:
    """Return whether the kernels attend along a group of this order."""
    return supports_dtype(x) and supports_order(order)


def supports_order(order: int) -> bool:
    """Return whether the kernels are available for a group of this order."""
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
    """Return the gradients of :func:`forward` with respect to the planes and the matrices."""
    planes, converted = planes.contiguous(), matrices.to(planes.dtype).contiguous()
    grad_planes = torch.empty_like(planes)
    grad_matrices = planes.new_empty(len(planes), *matrices.shape)
    tensors = (grad.to(planes.dtype).contiguous(), planes, converted, grad_planes, grad_matrices)
    _run("backward", tensors, planes, converted, rows, channel_step)
    return grad_planes, grad_matrices.sum(0).to(matrices.dtype)


def pool_forward(x: Tensor) -> Tensor:
    """Return the maximum over 2x2 windows; height and width are even."""
    x = x.contiguous()
    y = x.new_empty(*x.shape[:-2], x.shape[-2] // 2, x.shape[-1] // 2)
    _pool("forward", (x, y), x)
    return y


def pool_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of :func:`pool_forward` with respect to x."""
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


@dataclass
class State:
    """The kernels of this process, whether it has tried to load and to build them, and what is fast on this machine."""

    library: ctypes.CDLL | None = None
    has_loaded: bool = False
    has_built: bool = False
    channels_last_is_faster: bool = False
    multiplies_bfloat16: bool = False

    def take(self, library: ctypes.CDLL | None) -> None:
        """Use a library, or None."""
        self.library, self.has_loaded = library, True
        self.channels_last_is_faster = library is not None and channels_last_is_faster()
        self.multiplies_bfloat16 = library is not None and bool(library.coattend_multiplies_bfloat16())


STATE = State()


def library() -> ctypes.CDLL | None:
    """Return the kernels, loaded from the cache when first used, or None if unavailable; starts no compiler."""
    if not STATE.has_loaded:
        STATE.take(_available(_cached_library))
    return STATE.library


def build_library() -> bool:
    """Build the kernels unless they are in the cache, and return whether they are available."""
    if not STATE.has_built:
        library, STATE.has_built = _available(_built_library), True
        if library is not None:
            measure_formats()
        STATE.take(library)
    return STATE.library is not None


def _available(get: Callable[[], ctypes.CDLL]) -> ctypes.CDLL | None:
    if os.environ.get("COATTEND_KERNELS") == "off":
        return None
    try:
        return get()
    except (OSError, subprocess.SubprocessError) as reason:
        # Logged rather than warned: nothing is wrong with the results, and `python -W error` must not stop on it.
        logger.warning(
            "coattend: the fused co-attention kernel is not available (%s). Results are the same, training with "
            "attention is slower; set COATTEND_KERNELS=off to silence this.",
            _first_line(reason),
        )
        return None


def _cached_library() -> ctypes.CDLL:
    path = build.cached()
    if path is None:
        raise FileNotFoundError("it is not built; call coattend.functional.build_kernels() once")
    return _loaded(path)


def _built_library() -> ctypes.CDLL:
    path = build.cached()
    if path is not None:
        try:
            return _loaded(path)
        except OSError as reason:  # as it was built, but for another system that shares the folder
            logger.info("coattend: %s does not load (%s)", path, reason)
    return _loaded(build.build())


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
