"""Pooling over positions, which keeps the group axis, and over the group, which removes or shortens it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coattend.functional import max_pool_2x2
from coattend.groups import FiniteGroup, Subgroup, get_group
from coattend.nn.checks import Size, check_choice, check_real_map, check_size
from coattend.nn.tables import TabledModule

Reduce = Literal["max", "mean", "sum"]


class _SpatialPool2d(nn.Module):
    """Geometry of a pooling window."""

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> None:
        super().__init__()
        self.kernel_size = check_size(self, "kernel_size", kernel_size, 1)
        self.stride = check_size(self, "stride", kernel_size if stride is None else stride, 1)
        self.padding = check_size(self, "padding", padding, 0)
        if self.padding > self.kernel_size // 2:
            raise ValueError(
                f"{type(self).__name__} expects padding of at most half the kernel, {self.kernel_size // 2}, got "
                f"{self.padding}; windows that hold only padding have no value."
            )

    def check(self, x: Tensor) -> None:
        """Require a map that the window fits into."""
        check_real_map(self, x)
        height, width = x.shape[-2:]
        if min(height, width) + 2 * self.padding < self.kernel_size:
            raise ValueError(
                f"{type(self).__name__} has a window of {self.kernel_size} pixels, larger than the padded map of "
                f"{height + 2 * self.padding} x {width + 2 * self.padding}; pass larger images or a smaller window."
            )

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class SpatialMaxPool2d(_SpatialPool2d):
    """Take the maximum over windows of positions, pose by pose.

    Exact where ``(size + 2*padding - kernel_size) % stride == 0``.
    """

    # Defined here so that Python's own errors name this class.
    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> None:
        super().__init__(kernel_size, stride, padding)

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        if (self.kernel_size, self.stride, self.padding) == (2, 2, 0) and not (x.shape[-2] % 2 or x.shape[-1] % 2):
            return max_pool_2x2(x)
        y = F.max_pool2d(x.flatten(1, 2), self.kernel_size, self.stride, self.padding)
        return y.unflatten(1, x.shape[1:3])


class SpatialAvgPool2d(_SpatialPool2d):
    """Take the mean over windows of positions, pose by pose.

    Exact where ``(size + 2*padding - kernel_size) % stride == 0``.
    """

    # Defined here so that Python's own errors name this class.
    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> None:
        super().__init__(kernel_size, stride, padding)

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        y = F.avg_pool2d(x.flatten(1, 2), self.kernel_size, self.stride, self.padding)
        return y.unflatten(1, x.shape[1:3])


class SpatialUpsample2d(nn.Module):
    """Enlarge maps by a whole factor, pose by pose."""

    def __init__(self, scale_factor: Size, mode: Literal["nearest", "bilinear", "bicubic"] = "nearest") -> None:
        super().__init__()
        self.scale_factor = check_size(self, "scale_factor", scale_factor, 1)
        check_choice(self, "mode", mode, ("nearest", "bilinear", "bicubic"))
        self.mode = mode

    def forward(self, x: Tensor) -> Tensor:
        check_real_map(self, x)
        align_corners = None if self.mode == "nearest" else False
        y = F.interpolate(x.flatten(1, 2), scale_factor=self.scale_factor, mode=self.mode, align_corners=align_corners)
        return y.unflatten(1, x.shape[1:3])

    def extra_repr(self) -> str:
        return f"scale_factor={self.scale_factor}, mode={self.mode!r}"


class GroupPool(TabledModule):
    """Pool over the poses: over the whole group (map -> image), or over the left cosets gK of a subgroup K.

    After the first, the group only moves pixels. The second leaves one value per coset, in the order of
    ``group.left_cosets(K)``; the group acts on the cosets, whether or not K is normal.

    Shapes: (batch, channels, group, height, width) -> (batch, channels, height, width), with ``over`` ->
    (batch, channels, order / |K|, height, width).

    >>> GroupPool(group="p4m", reduce="mean", over=(0, 4))(torch.zeros(2, 3, 8, 5, 5)).shape
    torch.Size([2, 3, 4, 5, 5])
    """

    cosets: Tensor

    def __init__(self, group: FiniteGroup | str, reduce: Reduce = "max", over: Iterable[int] | None = None) -> None:
        super().__init__()
        check_choice(self, "reduce", reduce, get_args(Reduce))
        self.group = get_group(group)
        self.reduce = reduce
        self.over: Subgroup | None = None if over is None else self.group.verified_subgroup(over)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Recompute the table of cosets; the layer has no parameters."""
        self._make_tables(torch.empty(0) if "cosets" not in self._buffers else self.cosets)

    def forward(self, x: Tensor) -> Tensor:
        check_real_map(self, x, order=self.group.order, dimension=self.group.dimension)
        if self.over is None:
            return self._reduced(x, 2)
        return self._reduced(x[:, :, self.cosets], 3)

    def _tables(self) -> dict[str, Tensor]:
        subgroup = self.group.elements if self.over is None else self.over
        return {"cosets": torch.tensor(self.group.left_cosets(subgroup))}

    def _reduced(self, x: Tensor, axis: int) -> Tensor:
        if self.reduce == "max":
            return x.amax(axis)
        return x.mean(axis) if self.reduce == "mean" else x.sum(axis)

    def extra_repr(self) -> str:
        over = "" if self.over is None else f", over={self.over}"
        return f"group={self.group.name}, reduce={self.reduce!r}{over}"
