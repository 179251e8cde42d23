"""``torch.ops.coattend.normalize``: attention, batch norm and ReLU in one.

The input is saved for backward, and with attention and a ReLU the output too, which the next layer saves in any case.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coattend.functional._kernels import rows
from coattend.functional._kernels.attention import attend_gradients
from coattend.functional._kernels.library import LIBRARY, define, differentiate_first_output
from coattend.functional.attention import attend_formula
from coattend.functional.checks import MAP, check_attention, check_gradient, check_one_device, check_tensor
from coattend.functional.dispatch import differentiates_again
from coattend.functional.layout import empty_like, in_format_of
from coattend.functional.normalization import FUSED_ORDERS, normalize_formula

Optional = Tensor | None


def normalize(
    x: Tensor,
    matrix: Optional,
    weight: Optional,
    bias: Optional,
    mean: Optional,
    variance: Optional,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise by the C++ kernels, or by the formula where they are not available.

    Returns the map, and mean and variance of the batch, or nothing in their place with statistics of the caller.
    """
    _check("normalize", x, matrix, weight, bias, mean, variance)
    constants = None if mean is None or variance is None else (mean, variance)
    if _has_kernel(x, matrix):
        y, *statistics = rows.norm_forward(x, matrix, weight, bias, constants, eps, relu)
    else:
        y, *statistics = normalize_formula(x, matrix, weight, bias, constants, eps, relu)
        y = in_format_of(y, x)
    if constants is not None:
        statistics = [_nothing(x), _nothing(x)]
    return y, statistics[0], statistics[1]


def normalize_backward(
    grad: Tensor,
    x: Tensor,
    z: Optional,
    matrix: Optional,
    weight: Optional,
    bias: Optional,
    mean: Tensor,
    variance: Tensor,
    training: bool,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of :func:`normalize` with respect to x, the matrix, the weight and the bias.

    A tensor that is absent has nothing in its place.
    """
    _check("normalize_backward", x, matrix, weight, bias, mean, variance)
    check_gradient("normalize_backward", grad, x.shape, x)
    if z is not None:
        check_gradient("normalize_backward", z, x.shape, x)
    if _has_kernel(x, matrix):
        gradients = rows.norm_backward(grad, x, z, matrix, weight, bias, mean, variance, training, eps, relu)
    else:
        constants = None if training else (mean, variance)
        gradients = normalize_gradients(grad, x, matrix, weight, bias, constants, eps, relu)
    grad_x, *others = gradients
    values = [
        _nothing(x) if tensor is None or value is None else value.to(tensor.dtype).contiguous()
        for tensor, value in zip((matrix, weight, bias), others, strict=True)
    ]
    return in_format_of(grad_x, x), values[0], values[1], values[2]


def normalize_gradients(
    grad: Tensor,
    x: Tensor,
    matrix: Optional,
    weight: Optional,
    bias: Optional,
    statistics: tuple[Tensor, Tensor] | None,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Return the gradients of ``normalize_formula`` with respect to x, the matrix, the weight and the bias."""
    axes, shape = (0, 2, 3, 4), (1, -1, 1, 1, 1)
    wide = torch.promote_types(x.dtype, torch.float32)
    y = x.to(wide) if matrix is None else attend_formula(x.to(wide), matrix)
    mean, variance = (y.mean(axes), y.var(axes, correction=0)) if statistics is None else statistics
    inverse = torch.rsqrt(variance.view(shape) + eps)
    scaled = (y - mean.view(shape)) * inverse
    factor = inverse if weight is None else weight.view(shape) * inverse
    d = grad.to(wide)
    if relu:
        h = scaled if weight is None else scaled * weight.view(shape)
        d = torch.where((h if bias is None else h + bias.view(shape)) <= 0, 0, d)
    grad_weight, grad_bias = (d * scaled).sum(axes), d.sum(axes)
    if statistics is None:
        d = d - (grad_bias.view(shape) + scaled * grad_weight.view(shape)) / (x.numel() // x.shape[1])
    grad_y = factor * d
    if matrix is None:
        return grad_y.to(x.dtype), None, grad_weight, grad_bias
    grad_x, grad_matrix = attend_gradients(grad_y, x.to(wide), matrix)
    return grad_x.to(x.dtype), grad_matrix, grad_weight, grad_bias


def _check(function: str, x: Tensor, matrix: Optional, *per_channel: Optional) -> None:
    """Require tensors that fit together: the kernels would read beyond others."""
    check_tensor(function, "x", x, MAP, 5)
    if matrix is not None:
        check_attention(function, x, matrix, is_planar=True)
    given = [tensor for tensor in per_channel if tensor is not None]
    if any(tensor.shape != x.shape[1:2] for tensor in given):
        raise ValueError(
            f"{function} expects weight, bias, mean and variance of {x.shape[1]} channels for x {tuple(x.shape)}, got "
            f"shapes {', '.join(str(tuple(tensor.shape)) for tensor in given)}."
        )
    check_one_device(function, x, *given)


def _has_kernel(x: Tensor, matrix: Optional) -> bool:
    return rows.supports(x) and (matrix is None or x.shape[2] in FUSED_ORDERS)


def _nothing(x: Tensor) -> Tensor:
    return x.new_empty(0, dtype=torch.float32)


def _fake_normalize(
    x: Tensor,
    matrix: Optional,
    weight: Optional,
    bias: Optional,
    mean: Optional,
    variance: Optional,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    channels = x.shape[1] if mean is None else 0
    wide = torch.promote_types(x.dtype, torch.float32)
    return empty_like(x), x.new_empty(channels, dtype=wide), x.new_empty(channels, dtype=wide)


def _fake_normalize_backward(
    grad: Tensor, x: Tensor, z: Optional, matrix: Optional, weight: Optional, bias: Optional, *rest: object
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    values = (_nothing(x) if tensor is None else tensor.new_empty(tensor.shape) for tensor in (matrix, weight, bias))
    return empty_like(x), *values  # type: ignore[return-value]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, matrix, weight, bias, mean, variance, ctx.eps, ctx.relu = inputs
    ctx.training = mean is None
    statistics = output[1:] if ctx.training else (mean, variance)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    z = output[0] if matrix is not None and ctx.relu else None
    ctx.save_for_backward(x, z, matrix, weight, bias, *statistics)


@differentiate_first_output
def _backward(ctx: Any, grad: Tensor, *statistics: Tensor) -> tuple[Tensor | None, ...]:
    x, z, matrix, weight, bias, mean, variance = ctx.saved_tensors
    if differentiates_again():
        constants = None if ctx.training else (mean, variance)
        values = normalize_gradients(grad, x, matrix, weight, bias, constants, ctx.eps, ctx.relu)
    else:
        values = torch.ops.coattend.normalize_backward(
            grad, x, z, matrix, weight, bias, mean, variance, ctx.training, ctx.eps, ctx.relu
        )
    gradients = (
        value if tensor is not None else None for value, tensor in zip(values, (x, matrix, weight, bias), strict=True)
    )
    return *gradients, None, None, None, None


define(
    "normalize(Tensor x, Tensor? matrix, Tensor? weight, Tensor? bias, Tensor? mean, Tensor? variance, float eps,"
    " bool relu) -> (Tensor, Tensor, Tensor)",
    normalize,
    _fake_normalize,
)
define(
    "normalize_backward(Tensor grad, Tensor x, Tensor? z, Tensor? matrix, Tensor? weight, Tensor? bias, Tensor mean,"
    " Tensor variance, bool training, float eps, bool relu) -> (Tensor, Tensor, Tensor, Tensor)",
    normalize_backward,
    _fake_normalize_backward,
)
torch.library.register_autograd("coattend::normalize", _backward, setup_context=_save, lib=LIBRARY)
