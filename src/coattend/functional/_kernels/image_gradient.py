"""The gradients of a convolution of images of one channel.

``torch.ops.coattend.image_gradient``: with respect to the images; ``image_filter_gradients``: to filters and bias.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.functional._kernels import cpu
from coattend.functional._kernels.library import LIBRARY, define
from coattend.functional._kernels.rows import MOST_LANES, TYPES
from coattend.functional.checks import check_one_device, check_tensor


class Shape(ctypes.Structure):
    """``ImageShape`` of image_gradient.cpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "height", "width", "planes", "kernel", "stride", "padding")),
        *((name, ctypes.c_int64) for name in ("dilation", "threads", "taps")),
    )


def image_gradient(
    grad: Tensor, weight: Tensor, height: int, width: int, stride: int, padding: int, dilation: int
) -> Tensor:
    """Return the gradient (batch, 1, height, width) of ``conv2d(image, weight, ...)``.

    Args:
        grad: of what the convolution returned, (batch, planes, height, width).
        weight: the filters (planes, 1, k, k).
        height, width: of the images.
        stride, padding, dilation: of the convolution.
    """
    _check("image_gradient", grad, weight, height, width, stride, padding, dilation)
    if not _is_supported(grad):
        by_tap = weight.flatten(1).T @ grad.flatten(2)
        return F.fold(by_tap, (height, width), weight.shape[-2:], dilation, padding, stride)
    rows = grad.permute(0, 2, 3, 1).contiguous()  # without a copy in channels-last format
    filters = F.pad(weight.float().flatten(1), (0, -weight[0].numel() % MOST_LANES)).contiguous()
    images = torch.empty(len(grad), 1, height, width, dtype=torch.float32)
    geometry = len(grad), height, width, len(weight), weight.shape[-1], stride, padding, dilation
    shape = Shape(*geometry, torch.get_num_threads(), filters.shape[1])
    _call("gradient", grad, (rows, filters, images), shape)
    return images.to(grad.dtype)


def image_filter_gradients(
    grad: Tensor, images: Tensor, weight: Tensor, stride: int, padding: int, dilation: int
) -> tuple[Tensor, Tensor]:
    """Return the gradients (planes, 1, k, k) and (planes,) of ``conv2d(images, weight, bias, ...)``.

    Args:
        grad: of what the convolution returned, (batch, planes, height, width).
        images: (batch, 1, height, width).
        weight: the filters (planes, 1, k, k), of which only the shape counts.
        stride, padding, dilation: of the convolution.
    """
    name, (height, width) = "image_filter_gradients", images.shape[-2:]
    check_tensor(name, "the images", images, "(batch, 1, height, width)", 4)
    _check(name, grad, weight, height, width, stride, padding, dilation)
    check_one_device(name, grad, images)
    if images.shape[:2] != (len(grad), 1):
        raise ValueError(
            f"{name} expects {len(grad)} images of one channel, got {tuple(images.shape)}; pass those that the "
            "convolution took."
        )
    if not _is_supported(grad):
        pairs = [stride] * 2, [padding] * 2, [dilation] * 2
        _, *gradients = torch.ops.aten.convolution_backward(
            grad, images, weight, [len(weight)], *pairs, False, [0, 0], 1, [False, True, True]
        )
        return gradients[0].contiguous(), gradients[1]
    planes, k = len(weight), weight.shape[-1]
    sums = torch.empty(len(grad), k * k + 1, planes, dtype=torch.float32)
    shape = Shape(len(grad), height, width, planes, k, stride, padding, dilation, torch.get_num_threads(), k * k)
    _call("filters", grad, (grad.permute(0, 2, 3, 1).contiguous(), images.float().contiguous(), sums), shape)
    total = sums.sum(0).to(weight.dtype)
    return total[:-1].T.reshape(weight.shape).contiguous(), total[-1].clone()


def _is_supported(grad: Tensor) -> bool:
    fits = grad.device.type == "cpu" and grad.dtype in TYPES and grad.numel() > 0
    return fits and cpu.library() is not None


def _call(name: str, grad: Tensor, tensors: tuple[Tensor, ...], shape: Shape) -> None:
    function = getattr(cpu.library(), f"coattend_image_{name}_{TYPES[grad.dtype]}")
    function(*(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors), ctypes.byref(shape))


def _check(
    name: str, grad: Tensor, weight: Tensor, height: int, width: int, stride: int, padding: int, dilation: int
) -> None:
    """Require tensors that fit together: the kernels would read beyond others."""
    check_tensor(name, "the gradient", grad, "(batch, planes, height, width)", 4)
    check_tensor(name, "the weight", weight, "(planes, 1, k, k)", 4)
    check_one_device(name, grad, weight)
    planes, channels, k, other = weight.shape
    is_filter = channels == 1 and k == other and k > 0 and min(stride, dilation) > 0 and padding >= 0
    spans = [size + 2 * padding - dilation * (k - 1) for size in (height, width)]
    expected = (len(grad), planes, *((span - 1) // max(1, stride) + 1 for span in spans))
    if not is_filter or min(spans) < 1 or tuple(grad.shape) != expected or grad.dtype != weight.dtype:
        raise ValueError(
            f"{name} expects a gradient of {weight.dtype} in the shape {expected} for a weight (planes, 1, k, k), got "
            f"{grad.dtype} {tuple(grad.shape)} for the weight {tuple(weight.shape)}; pass the gradient of what the "
            f"convolution of {height} x {width} images returned."
        )


def _fake(grad: Tensor, weight: Tensor, height: int, width: int, *geometry: int) -> Tensor:
    _check("image_gradient", grad, weight, height, width, *geometry)
    return grad.new_empty(len(grad), 1, height, width)


def _fake_filters(grad: Tensor, images: Tensor, weight: Tensor, *geometry: int) -> tuple[Tensor, Tensor]:
    _check("image_filter_gradients", grad, weight, *images.shape[-2:], *geometry)
    return weight.new_empty(weight.shape), weight.new_empty(len(weight))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.geometry = inputs[4:]


def _backward(ctx: Any, up: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients, by operations that can be differentiated again; linear in both, it has those of conv2d."""
    grad, weight = ctx.saved_tensors
    pairs = [[number] * 2 for number in ctx.geometry]
    _, grad_weight, _ = torch.ops.aten.convolution_backward(
        grad, up, weight, None, *pairs, False, [0, 0], 1, [False, True, False]
    )
    return F.conv2d(up, weight, None, *ctx.geometry), grad_weight, *(None,) * 5


define(
    "image_gradient(Tensor grad, Tensor weight, int height, int width, int stride, int padding, int dilation)"
    " -> Tensor",
    image_gradient,
    _fake,
)
torch.library.register_autograd("coattend::image_gradient", _backward, setup_context=_save, lib=LIBRARY)
define(
    "image_filter_gradients(Tensor grad, Tensor images, Tensor weight, int stride, int padding, int dilation)"
    " -> (Tensor, Tensor)",
    image_filter_gradients,
    _fake_filters,
)
