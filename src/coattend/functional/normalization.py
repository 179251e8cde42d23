"""Batch norm with statistics and parameters per channel, shared by the poses; fused with what is beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.functional.attention import attend_formula
from coattend.functional.dispatch import computed_type, decomposes, differentiates_again, is_eager
from coattend.functional.geometry import Geometry
from coattend.functional.layout import TYPES, folded, is_channels_last
from coattend.functional.planes import (
    add_bias,
    bank_channels_last,
    conv2d_gradients,
    stays_in_cache,
    takes_filters,
)

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


def attention_joins(
    x: Tensor,
    planes: int,
    order: int,
    geometry: Geometry,
    filters: Sequence[Tensor | None],
    parameters: Sequence[Tensor | None],
) -> bool:
    """Return whether :func:`convolve_and_normalize` computes a map of so many planes from x, and is faster.

    ``filters``: weight and bias of the convolution; ``parameters``: the other tensors that it takes besides x.
    """
    if not (order in FUSED_ORDERS and x.numel() > 0 and is_eager(x) and takes_filters(x, *filters)):
        return False
    if any(tensor is not None and tensor.dtype not in (torch.float32, x.dtype) for tensor in parameters):
        return False
    # Libraries convolve blocks of 16 planes, of which the last one is half empty here; else they are as fast.
    is_faster = planes % 16 == 8 and geometry.kernel_size > 1
    return is_faster and stays_in_cache(x, planes, geometry) and _has_kernels()


def _has_kernels() -> bool:
    from coattend.functional._kernels import cpu

    return cpu.library() is not None


def convolve_and_normalize(
    x: Tensor,
    bank: Tensor,
    conv_bias: Tensor | None,
    padding: int,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: tuple[Tensor, Tensor] | None,
    eps: float,
    matrix: Tensor,
    relu: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what :func:`normalize` returns for a convolution of x for which :func:`attention_joins` holds.

    ``bank``, ``conv_bias``, ``padding``: of the plain convolution that computes the map. There are gradients with
    statistics of the batch only.
    """
    x = x.to(computed_type(x))
    if statistics is None:
        return ConvolutionAndNorm.apply(x, bank, conv_bias, matrix, weight, bias, eps, relu, padding)
    from coattend.functional._kernels.conv_attention import conv_attention

    return conv_attention(x, bank, conv_bias, padding, matrix, weight, bias, statistics, eps, relu), *statistics


class ConvolutionAndNorm(torch.autograd.Function):
    """A convolution, co-attention, a norm with statistics of the batch and a ReLU.

    Attention and the statistics are computed in the pass of the convolution. Saved is what the layers save one by one.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bank: Tensor,
        conv_bias: Tensor | None,
        matrix: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        relu: bool,
        padding: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the map, and mean and variance of the batch."""
        from coattend.functional._kernels import rows
        from coattend.functional._kernels.conv_attention import conv_statistics

        y, z, mean, variance = conv_statistics(x, bank, conv_bias, padding, matrix)
        rows.norm_forward(z, None, weight, bias, (mean, variance), eps, relu, in_place=True)
        ctx.eps, ctx.relu, ctx.padding = eps, relu, padding
        ctx.mark_non_differentiable(mean, variance)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, bank, conv_bias, matrix, weight, bias, y, z if relu else None, mean, variance)
        return z, mean, variance

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        """Return the gradients; those that will be differentiated again, by standard operations."""
        if grad is None:
            return (None,) * 9
        x, bank, conv_bias, matrix, weight, bias, y, z, mean, variance = ctx.saved_tensors
        given = (x, bank, conv_bias, matrix, weight, bias)
        wanted = [tensor for tensor, needed in zip(given, ctx.needs_input_grad, strict=False) if needed]
        if differentiates_again():
            backward_again = torch.is_grad_enabled()  # it is off where the gradient carries a tangent
            with torch.enable_grad():
                planes = add_bias(F.conv2d(folded(x), bank.to(x.dtype), padding=ctx.padding), conv_bias)
                again = planes.unflatten(1, matrix.shape[:2])
                result = normalize_formula(again, matrix, weight, bias, None, ctx.eps, ctx.relu)[0]
            gradients = iter(torch.autograd.grad(result, wanted, grad, create_graph=backward_again))
            return *(next(gradients) if needed else None for needed in ctx.needs_input_grad[:6]), None, None, None
        grad_y, grad_matrix, grad_weight, grad_bias = torch.ops.coattend.normalize_backward(
            grad, y, z, matrix, weight, bias, mean, variance, True, ctx.eps, ctx.relu
        )
        needed = [ctx.needs_input_grad[0], ctx.needs_input_grad[1], conv_bias is not None and ctx.needs_input_grad[2]]
        grad_x, grad_bank, grad_conv_bias = conv2d_gradients(
            folded(grad_y), folded(x), bank_channels_last(bank.to(x.dtype)), 1, ctx.padding, 1, needed
        )
        grad_x = None if grad_x is None else grad_x.unflatten(1, x.shape[1:-2])
        if grad_bank is not None:
            grad_bank = grad_bank.to(bank.dtype)
        if grad_conv_bias is not None:
            grad_conv_bias = grad_conv_bias.to(conv_bias.dtype)
        parameters = (None if t is None else g for t, g in ((weight, grad_weight), (bias, grad_bias)))
        return grad_x, grad_bank, grad_conv_bias, grad_matrix, *parameters, None, None, None


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
