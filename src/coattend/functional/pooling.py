"""``torch.ops.coattend.max_pool``: the maximum over 2x2 windows, which saves nothing but its input."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.functional import native
from coattend.functional.checks import check_gradient, check_windows
from coattend.functional.registry import LIBRARY, decomposes, define, differentiates_again


def max_pool_2x2(x: Tensor) -> Tensor:
    """Maximum over windows of 2x2 that do not overlap: (..., height, width), both even -> (..., height/2, width/2).

    Equal maxima share the gradient evenly, so that the gradient is as equivariant as the value.
    """
    check_windows("max_pool_2x2", x)
    return _pooled(x) if decomposes(x) else torch.ops.coattend.max_pool(x)


def max_pool(x: Tensor) -> Tensor:
    """The operator's kernel."""
    check_windows("max_pool", x)
    return native.pool_forward(x) if native.serves_type(x) else _pooled(x).contiguous()


def max_pool_backward(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of :func:`max_pool`."""
    check_windows("max_pool_backward", x)
    check_gradient("max_pool_backward", grad, _pooled_shape(x), x)
    return native.pool_backward(grad, x) if native.serves_type(x) else _gradient(grad, x).contiguous()


def _pooled(x: Tensor) -> Tensor:
    # One plane per image and channel: max_pool2d knows no more axes.
    return F.max_pool2d(x.flatten(1, -3), 2).unflatten(1, x.shape[1:-2])


def _pooled_shape(x: Tensor) -> tuple[int, ...]:
    return *x.shape[:-2], x.shape[-2] // 2, x.shape[-1] // 2


def _gradient(grad: Tensor, x: Tensor) -> Tensor:
    windows = x.unflatten(-1, (-1, 2)).unflatten(-3, (-1, 2))
    highest = (windows == windows.amax((-1, -3), keepdim=True)).to(x.dtype)
    share = grad[..., :, None, :, None] / highest.sum((-1, -3), keepdim=True)
    return (highest * share).reshape(x.shape)


def _formula(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    if differentiates_again():
        return _gradient(grad, x)
    return torch.ops.coattend.max_pool_backward(grad, x)


def _save_input(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _fake_max_pool(x: Tensor) -> Tensor:
    check_windows("max_pool", x)
    return x.new_empty(_pooled_shape(x))


def _fake_max_pool_backward(grad: Tensor, x: Tensor) -> Tensor:
    check_windows("max_pool_backward", x)
    check_gradient("max_pool_backward", grad, _pooled_shape(x), x)
    return x.new_empty(x.shape)


define("max_pool(Tensor x) -> Tensor", max_pool, _fake_max_pool)
define("max_pool_backward(Tensor grad, Tensor x) -> Tensor", max_pool_backward, _fake_max_pool_backward)
torch.library.register_autograd("coattend::max_pool", _formula, setup_context=_save_input, lib=LIBRARY)
