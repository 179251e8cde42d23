"""Which windows treat all directions alike, so that a turned filter computes what a turned image would give."""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn


class Window(NamedTuple):
    """A square window: size, stride, padding on all four sides, dilation."""

    size: int
    stride: int
    padding: int
    dilation: int

    def fits(self, height: int, width: int) -> bool:
        """Return whether the windows cover an image evenly, so that turning the image does not move them."""
        extent = self.dilation * (self.size - 1) + 1
        return all((n + 2 * self.padding - extent) % self.stride == 0 for n in (height, width))


def pair(value: object) -> tuple[int, int]:
    """Return a size for both axes."""
    if isinstance(value, (tuple, list)):
        first, second = value if len(value) == 2 else (*value, *value)
        return int(first), int(second)
    return int(value), int(value)  # type: ignore[call-overload]


def conv_window(conv: nn.Conv2d) -> Window | None:
    """Return the square window of a convolution, None if it treats rows and columns differently.

    A kernel that is not square gets zeros around it: 1 x 7 padded by (0, 3) is 7 x 7 padded by 3.
    """
    (rows, columns), strides, dilations = pair(conv.kernel_size), pair(conv.stride), pair(conv.dilation)
    if strides[0] != strides[1] or dilations[0] != dilations[1]:
        return None
    dilation, size = dilations[0], max(rows, columns)
    if isinstance(conv.padding, str):
        reach = [0 if conv.padding == "valid" else dilation * (k - 1) for k in (rows, columns)]
        if any(n % 2 for n in reach):
            return None
        padding = [n // 2 for n in reach]
    else:
        padding = list(pair(conv.padding))
    added = [size - rows, size - columns]
    if any(n % 2 for n in added):
        return None
    wide = {p + dilation * n // 2 for p, n in zip(padding, added, strict=True)}
    return Window(size, strides[0], wide.pop(), dilation) if len(wide) == 1 else None


def square_kernel(weight: Tensor) -> Tensor:
    """Return a filter with zeros around it that make it square."""
    rows, columns = weight.shape[-2:]
    size = max(rows, columns)
    above, left = (size - rows) // 2, (size - columns) // 2
    return F.pad(weight, (left, left, above, above))


def pool_window(pool: nn.MaxPool2d | nn.AvgPool2d) -> Window | None:
    """Return the square window of a pooling layer, None if it treats rows and columns differently."""
    size, stride, padding = pair(pool.kernel_size), pair(pool.stride), pair(pool.padding)
    dilation = pair(getattr(pool, "dilation", 1))
    if any(a != b for a, b in (size, stride, padding, dilation)):
        return None
    return Window(size[0], stride[0], padding[0], dilation[0])
