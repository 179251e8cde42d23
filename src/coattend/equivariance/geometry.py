"""Sliding windows: kernel, stride and padding of any layer, and the image sizes that they divide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from coattend.nn import GroupConvTranspose2d, PoseConv2d, SpatialAvgPool2d, SpatialMaxPool2d
from coattend.nn.observe import Call, evaluating, recording

_POOLS = (nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool2d, nn.AvgPool3d)


@dataclass(frozen=True)
class Window:
    """One axis of a sliding window; kernel is its extent in pixels, dilation included."""

    kernel: int
    stride: int
    padding: int
    ceil_mode: bool = False

    def left_over(self, size: int) -> int:
        """Return how many pixels on one side no window covers; 0 is the condition for exact equivariance."""
        return (size + 2 * self.padding - self.kernel) % self.stride


def window_of(module: nn.Module) -> Window | None:
    """Return the window of a convolution or pooling layer, of this library or of torch; None for other layers.

    Transposed convolutions have none: whatever the size of their input, they leave no position out.
    """
    if isinstance(module, GroupConvTranspose2d):
        return None
    if isinstance(module, PoseConv2d):
        return Window(module.dilation * (module.kernel_size - 1) + 1, module.stride, module.padding)
    if isinstance(module, (SpatialMaxPool2d, SpatialAvgPool2d)):
        return Window(module.kernel_size, module.stride, module.padding)
    if isinstance(module, _POOLS):
        dilation = _last(getattr(module, "dilation", 1))
        kernel = dilation * (_last(module.kernel_size) - 1) + 1
        return Window(kernel, _last(module.stride), _last(module.padding), module.ceil_mode)
    if isinstance(module, (nn.Conv2d, nn.Conv3d)):
        reach = _last(module.dilation) * (_last(module.kernel_size) - 1)
        padding = module.padding
        pixels = (reach // 2 if padding == "same" else 0) if isinstance(padding, str) else _last(padding)
        return Window(reach + 1, _last(module.stride), pixels)
    return None


def divides(module: nn.Module, x: Tensor) -> bool:
    """Return whether every strided window inside the module covers the maps that it receives for the input ``x``."""

    def leaves_pixels(call: Call) -> bool | None:
        window = window_of(call.layer)
        if window is None or not call.inputs or not isinstance(call.inputs[0], Tensor) or call.inputs[0].ndim < 4:
            return None
        return any(window.left_over(size) for size in call.inputs[0].shape[-2:])

    with evaluating(module), recording(module, leaves_pixels, before=True) as uncovered:
        module(x)
    return not any(uncovered)


def safe_sizes(module: nn.Module, x: Tensor, reach: int = 32) -> list[tuple[int, int]]:
    """Return the nearest input sizes (height, width), one smaller and one larger, at which all strides divide."""
    if not isinstance(module, nn.Module) or not isinstance(x, Tensor) or x.ndim < 4:
        raise ValueError(
            f"safe_sizes expects a torch.nn.Module and an input (batch, channels, ..., height, width) for it, got "
            f"{type(module).__name__} and {tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__}."
        )
    height, width = x.shape[-2:]
    sizes = []
    for direction in (-1, 1):
        for step in range(reach + 1):
            size = (height + direction * step, width + direction * step)
            if min(size) < 1 or (step == 0 and direction == 1):
                continue
            if _accepts_and_divides(module, x.new_zeros(1, *x.shape[1:-2], *size)):
                sizes.append(size)
                break
    return sorted(set(sizes))


def _accepts_and_divides(module: nn.Module, x: Tensor) -> bool:
    try:
        return divides(module, x)
    except (ValueError, RuntimeError):  # too small for a kernel, or a linear layer fixes the size
        return False


def _last(value: Any) -> int:
    return int(value[-1]) if isinstance(value, (tuple, list)) else int(value)
