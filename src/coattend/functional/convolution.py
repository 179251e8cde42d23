"""Convolutions between images and maps on a group."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.functional.checks import check_tensor
from coattend.functional.dispatch import autocasts, decomposes


def padded_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
    padding_mode: str,
    poses: int | None = None,
) -> Tensor:
    """Convolve the planes of an image or a map, with the same padding on all four sides, in any padding mode.

    With ``poses`` the result is a map with that many, else an image.
    """
    check_tensor("padded_conv2d", "x", x, "(batch, channels, height, width) or with poses", 4, or_more=True)
    if padding_mode != "zeros" and padding > 0:
        x = F.pad(x.flatten(1, -3), (padding,) * 4, mode=padding_mode)
        padding = 0
    if torch.compiler.is_compiling() and not decomposes(x) and not autocasts(x):
        return torch.ops.coattend.convolution(x, weight, bias, stride, padding, dilation, groups, poses)
    return planes_conv2d(x, weight, bias, stride, padding, dilation, groups, poses)


def planes_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
    poses: int | None,
) -> Tensor:
    """Apply ``conv2d`` to the planes of an image or a map, with the poses among the channels."""
    y = F.conv2d(x.flatten(1, -3), weight, bias, stride, padding, dilation, groups)
    return y if poses is None else y.unflatten(1, (-1, poses))
