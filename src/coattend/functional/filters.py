"""Banks of turned filters, and the plain convolution that applies them.

``turns`` is what :func:`coattend.groups.filter_turns` returns; ``relative[g, h] = g^-1 h``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.functional.convolution import convolution
from coattend.functional.formula import autocasts
from coattend.functional.registry import decomposes


def turn_filters(weight: Tensor, turns: Tensor) -> Tensor:
    """Every filter in every pose: (..., k, k) -> (..., group, k, k)."""
    taps = weight.flatten(-2)
    if turns.is_floating_point():
        turned = torch.einsum("...p,gqp->...gq", taps, turns.to(taps.dtype))
    else:
        turned = taps.index_select(-1, turns.flatten())
    return turned.reshape(*weight.shape[:-2], len(turns), *weight.shape[-2:])


def group_filters(weight: Tensor, turns: Tensor, relative: Tensor) -> Tensor:
    """The bank of a group convolution, ``bank[o, g, i, h] = g.(weight[o, i, g^-1 h])``.

    (out, in, group, k, k) -> (out, group, in, group, k, k)
    """
    poses = torch.arange(len(relative), device=relative.device)[:, None]
    return turned_slices(weight, turns, relative, poses).transpose(1, 2).contiguous()


def turned_slices(weight: Tensor, turns: Tensor, slices: Tensor, poses: Tensor) -> Tensor:
    """Slices of a filter on the group in chosen poses, ``bank[o, i, a, b] = poses[a, b].(weight[o, i, slices[a, b]])``.

    (out, in, slices, k, k) -> (out, in, *slices.shape, k, k)
    """
    out_channels, in_channels, number, k, _ = weight.shape
    if turns.is_floating_point():
        # Every slice in every pose by one product of matrices, then a permutation: [slice, pose] -> [a, b].
        turned = torch.matmul(weight.flatten(3), turns.to(weight.dtype).flatten(0, 1).mT)
        index = slices * len(turns) + poses
        bank = turned.reshape(out_channels, in_channels, number * len(turns), k**2).index_select(2, index.flatten())
    else:
        index = slices[..., None] * k**2 + turns[poses]
        bank = weight.flatten(2).index_select(2, index.flatten())
    return bank.reshape(out_channels, in_channels, *slices.shape, k, k)


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
    """``conv2d`` of an image or a map, which pads all four sides alike, in any padding mode.

    With ``poses`` the result is a map with as many, else an image.
    """
    if padding_mode != "zeros" and padding > 0:
        x = F.pad(x.flatten(1, -3), (padding,) * 4, mode=padding_mode)
        padding = 0
    if torch.compiler.is_compiling() and not decomposes(x) and not autocasts(x):
        return torch.ops.coattend.convolution(x, weight, bias, stride, padding, dilation, groups, poses)
    return convolution(x, weight, bias, stride, padding, dilation, groups, poses)
