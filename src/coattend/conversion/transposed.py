"""A transposed convolution that reads each pose of a map for itself."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coattend.conversion.frames import move_of
from coattend.groups import FiniteGroup, get_group


class PoseConvTranspose2d(nn.Module):
    """Apply a transposed convolution to each pose of a map, with the filter in that pose: map -> map.

    ``y[o, g] = sum_i x[i, g] *T (g.W[i, o]) + b[o]``, arguments as :class:`torch.nn.ConvTranspose2d`. It is exact at
    every size, for groups of quarter turns and flips.

    Shapes: (batch, in_channels, group, height, width) -> (batch, out_channels, group, height', width');
    weight (in, out / groups, k, k), one bias per channel.

    >>> PoseConvTranspose2d(8, 4, 2, group="p4", stride=2)(torch.zeros(1, 8, 4, 5, 5)).shape
    torch.Size([1, 4, 4, 10, 10])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        group: FiniteGroup | str,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int = 1,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.kernel_size = in_channels, out_channels, kernel_size
        self.stride, self.padding, self.groups, self.dilation = stride, padding, groups, dilation
        self.group = get_group(group)
        shape = (in_channels, out_channels // groups, kernel_size, kernel_size)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(out_channels, device=device, dtype=dtype)) if bias else None
        nn.init.normal_(self.weight, std=1 / math.sqrt(out_channels // groups * kernel_size**2))

    def forward(self, x: Tensor) -> Tensor:
        order = self.group.order
        filters = torch.cat([move_of(self.group, g).apply(self.weight, 2, 3) for g in self.group.elements])
        bias = None if self.bias is None else self.bias.repeat(order)
        planes = x.transpose(1, 2).flatten(1, 2)  # pose, then channel: poses are channel groups
        y = F.conv_transpose2d(
            planes, filters, bias, self.stride, self.padding, groups=order * self.groups, dilation=self.dilation
        )
        return y.unflatten(1, (order, self.out_channels)).transpose(1, 2)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"group={self.group.name}"
        )
