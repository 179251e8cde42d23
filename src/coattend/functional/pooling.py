"""``torch.ops.coattend.max_pool``: the maximum over 2x2 windows, which saves nothing but its input."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.functional import native
from coattend.functional.registry import LIBRARY, decomposes, define


def max_pool_2x2(x: Tensor) -> Tensor:
    """Maximum over windows of 2x2 that do not overlap: (..., height, width), both even -> (..., height/2, width/2).

    Equal maxima share the gradient evenly, so that the gradient is as equivariant as the value.
    """
    return _pooled(x) if decomposes(x) else torch.ops.coattend.max_pool(x)


def max_pool(x: Tensor) -> Tensor:
    """The operator's kernel."""
    return native.pool_forward(x) if native.serves_type(x) else _pooled(x).contiguous()


def max_pool_backward(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of :func:`max_pool`."""
    return native.pool_backward(grad, x) if native.serves_type(x) else _gradient(grad, x).contiguous()


def _pooled(x: Tensor) -> Tensor:
    # One plane per image and channel: max_pool2d knows no more axes.
    return F.max_pool2d(x.flatten(1, -3), 2).unflatten(1, x.shape[1:-2])


def _gradient(grad: Tensor, x: Tensor) -> Tensor:
    windows = x.unflatten(-1, (-1, 2)).unflatten(-3, (-1, 2))
    highest = (windows == windows.amax((-1, -3), keepdim=True)).to(x.dtype)
    share = grad[..., :, None, :, None] / highest.sum((-1, -3), keepdim=True)
    return (highest * share).reshape(x.shape)


def _formula(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: the gradient is to be differentiated again
        return _gradient(grad, x)
    return torch.ops.coattend.max_pool_backward(grad, x)


def _save_input(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


define(
    "max_pool(Tensor x) -> Tensor",
    max_pool,
    lambda x: x.new_empty(*x.shape[:-2], x.shape[-2] // 2, x.shape[-1] // 2),
)
define("max_pool_backward(Tensor grad, Tensor x) -> Tensor", max_pool_backward, lambda grad, x: x.new_empty(x.shape))
torch.library.register_autograd("coattend::max_pool", _formula, setup_context=_save_input, lib=LIBRARY)
