"""Banks of turned filters, and the plain convolution that applies them.

``turns`` is what :func:`coattend.groups.filter_turns` returns; ``relative[g, h] = g^-1 h``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


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
    out_channels, in_channels, order, k, _ = weight.shape
    if turns.is_floating_point():
        slices = weight.flatten(3)[:, :, relative]
        bank = torch.einsum("oighp,gqp->ogihq", slices, turns.to(weight.dtype))
    else:
        index = relative[:, :, None] * k**2 + turns[:, None, :]
        bank = weight.flatten(2).index_select(2, index.flatten())
        bank = bank.reshape(out_channels, in_channels, order, order, k**2).transpose(1, 2)
    return bank.reshape(out_channels, order, in_channels, order, k, k)


def padded_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
    padding_mode: str,
) -> Tensor:
    """``conv2d`` that pads all four sides alike, in any padding mode."""
    if padding_mode != "zeros" and padding > 0:
        x = F.pad(x, (padding,) * 4, mode=padding_mode)
        padding = 0
    return F.conv2d(x, weight, bias, stride, padding, dilation, groups)
