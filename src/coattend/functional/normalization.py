"""Batch norm with statistics and parameters per channel, shared by the poses; fused with what is beside it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.functional.attention import attend_formula
from coattend.functional.dispatch import decomposes
from coattend.functional.geometry import Geometry
from coattend.functional.layout import TYPES, is_channels_last
from coattend.functional.planes import stays_in_cache

FUSED_ORDERS = (2, 4, 8)


def fuses_norm(x: Tensor, channels: int, order: int | None = None) -> bool:
    """Return whether norm and ReLU, and with an order the attention before them, take one pass over this map."""
    if decomposes(x) or x.device.type != "cpu" or x.dtype not in TYPES or x.numel() <= channels:
        return False
    return (order is None or order in FUSED_ORDERS) and is_channels_last(x)


def normalize(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: tuple[Tensor, Tensor] | None,
    eps: float,
    matrix: Tensor | None = None,
    relu: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``ReLU(norm(attend(x)))`` of a map for which :func:`fuses_norm` holds, and mean and variance of the batch.

    Only x is saved for the backward pass. Mean and variance have no elements if ``statistics`` are given.

    Args:
        x: a map (batch, channels, group, height, width).
        weight, bias: (channels,) or None.
        statistics: mean and variance (channels,), or None for those of the batch.
        eps: added to the variance.
        matrix: matrices of co-attention (channels, group, group), or None for no attention before the norm.
        relu: whether a ReLU follows the norm.
    """
    mean, variance = (None, None) if statistics is None else statistics
    return torch.ops.coattend.normalize(x, matrix, weight, bias, mean, variance, eps, relu)


def normalize_in_place(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: tuple[Tensor, Tensor],
    eps: float,
    matrix: Tensor | None = None,
    relu: bool = False,
) -> Tensor:
    """Overwrite x by what :func:`normalize` returns for it; without gradients, for a map that nobody else reads."""
    from coattend.functional._kernels import rows

    if not rows.supports(x):
        return normalize(x, weight, bias, statistics, eps, matrix, relu)[0]
    return rows.norm_forward(x, matrix, weight, bias, statistics, eps, relu, in_place=True)[0]


def convolve_and_normalize(
    x: Tensor,
    bank: Tensor,
    conv_bias: Tensor | None,
    geometry: Geometry,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: tuple[Tensor, Tensor],
    eps: float,
    matrix: Tensor,
    relu: bool = False,
) -> Tensor | None:
    """Return what :func:`normalize` returns for a convolution of x, in one pass without gradients; None if slower.

    ``bank`` and ``conv_bias``: of the plain convolution that computes the map.
    """
    from coattend.functional._kernels import cpu

    given = {tensor.dtype for tensor in (conv_bias, weight, bias, *statistics) if tensor is not None}
    is_known = matrix.shape[-1] in FUSED_ORDERS and given == {torch.float32} and x.numel() > 0
    # Libraries convolve blocks of 16 planes, of which the last one is half empty here; else they are as fast.
    is_faster = len(bank) % 16 == 8 and geometry.kernel_size > 1
    if not (is_known and is_faster and cpu.library() is not None and stays_in_cache(x, (bank, matrix), geometry)):
        return None
    from coattend.functional._kernels.conv_attention import conv_attention

    return conv_attention(x, bank, conv_bias, geometry.padding, matrix, weight, bias, statistics, eps, relu)


def normalize_formula(
    x: Tensor,
    matrix: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: tuple[Tensor, Tensor] | None,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what :func:`normalize` does, by standard operations."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    if matrix is not None:
        wide = attend_formula(wide, matrix)
    shape = (1, -1, 1, 1, 1)
    if statistics is None:
        variance, mean = torch.var_mean(wide, dim=(0, 2, 3, 4), correction=0)
    else:
        mean, variance = statistics
    y = (wide - mean.view(shape)) * torch.rsqrt(variance.view(shape) + eps)
    if weight is not None:
        y = y * weight.view(shape)
    if bias is not None:
        y = y + bias.view(shape)
    return (F.relu(y) if relu else y).to(x.dtype), mean, variance
