"""``torch.ops.coattend.max_pool``: the maximum over 2x2 windows, which saves only its input for the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coattend.functional._kernels import cpu, rows
from coattend.functional._kernels.library import LIBRARY, define
from coattend.functional.checks import check_gradient, check_windows
from coattend.functional.dispatch import differentiates_again
from coattend.functional.layout import empty_like, in_format_of
from coattend.functional.pooling import max_pool_formula


def max_pool(x: Tensor) -> Tensor:
    """Pool by the C++ kernel, or by the formula where it is not available."""
    check_windows("max_pool", x)
    if rows.supports(x):
        return rows.pool_forward(x)
    return in_format_of(cpu.pool_forward(x) if cpu.supports_dtype(x) else max_pool_formula(x), x)


def max_pool_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of :func:`max_pool`."""
    check_windows("max_pool_backward", x)
    check_gradient("max_pool_backward", grad, _pooled_shape(x), x)
    if rows.supports(x):
        return rows.pool_backward(grad, x)
    return in_format_of(cpu.pool_backward(grad, x) if cpu.supports_dtype(x) else _gradient(grad, x), x)


def _pooled_shape(x: Tensor) -> tuple[int, ...]:
    return *x.shape[:-2], x.shape[-2] // 2, x.shape[-1] // 2


def _gradient(grad: Tensor, x: Tensor) -> Tensor:
    windows = x.unflatten(-1, (-1, 2)).unflatten(-3, (-1, 2))
    is_largest = (windows == windows.amax((-1, -3), keepdim=True)).to(x.dtype)
    share = grad[..., :, None, :, None] / is_largest.sum((-1, -3), keepdim=True)
    return (is_largest * share).reshape(x.shape)


def _backward(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    if differentiates_again():
        return _gradient(grad, x)
    return torch.ops.coattend.max_pool_backward(grad, x)


def _save_input(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _fake_max_pool(x: Tensor) -> Tensor:
    check_windows("max_pool", x)
    return empty_like(x, _pooled_shape(x))


def _fake_max_pool_backward(grad: Tensor, x: Tensor) -> Tensor:
    check_windows("max_pool_backward", x)
    check_gradient("max_pool_backward", grad, _pooled_shape(x), x)
    return empty_like(x)


define("max_pool(Tensor x) -> Tensor", max_pool, _fake_max_pool)
define("max_pool_backward(Tensor grad, Tensor x) -> Tensor", max_pool_backward, _fake_max_pool_backward)
torch.library.register_autograd("coattend::max_pool", _backward, setup_context=_save_input, lib=LIBRARY)
