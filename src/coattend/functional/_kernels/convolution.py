"""``torch.ops.coattend.convolution``: a convolution between maps that torch.compile leaves alone.

It is an operator only for torch.compile on CPUs. If the compiler saw through it, the view from map to planes would come
between an activation and the convolution that saves it. Views are not recomputed, so the sign of every activation would
be saved as well, as booleans, which Inductor writes 30 times slower than the activation itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coattend.functional._kernels.library import LIBRARY, define, save_first_two
from coattend.functional.checks import check_one_device
from coattend.functional.layout import empty_like, folded, in_format_of
from coattend.functional.planes import conv2d_gradients, planes_conv2d


def convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
    of_x: bool = True,
    of_filters: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of ``planes_conv2d`` for x, the weight and the bias; those that are not needed are empty."""
    needed = [of_x, of_filters, of_filters]
    with torch.no_grad():  # operators are not differentiated again: kernels may serve
        grad_x, grad_weight, grad_bias = conv2d_gradients(
            folded(grad), folded(x), weight, stride, padding, dilation, needed, groups
        )
    planes = x.new_empty(0) if grad_x is None else in_format_of(grad_x.unflatten(1, x.shape[1:-2]), x)
    filters, biases = (weight.new_empty(0) if g is None else g.contiguous() for g in (grad_weight, grad_bias))
    return planes, filters, biases


def _fake_convolution_gradients(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
    of_x: bool = True,
    of_filters: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    check_one_device("convolution_backward", grad, x, weight)
    planes = empty_like(x) if of_x else x.new_empty(0)
    if not of_filters:
        return planes, weight.new_empty(0), weight.new_empty(0)
    return planes, weight.new_empty(weight.shape), weight.new_empty(weight.shape[0])


def _convolution_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    _, *geometry, _ = ctx.rest
    needed = ctx.needs_input_grad[:3]
    grads = torch.ops.coattend.convolution_backward(grad, x, weight, *geometry, needed[0], needed[1] or needed[2])
    wanted = (g if is_needed else None for g, is_needed in zip(grads, needed, strict=True))
    return *wanted, *(None for _ in ctx.rest[1:])


define(
    "convolution(Tensor x, Tensor weight, Tensor? bias, int stride, int padding, int dilation, int groups, int? poses)"
    " -> Tensor",
    planes_conv2d,
    planes_conv2d,
)
# The last arguments have defaults because graphs that torch.compile has stored on disk may not give them.
define(
    "convolution_backward(Tensor grad, Tensor x, Tensor weight, int stride, int padding, int dilation, int groups,"
    " bool of_x=True, bool of_filters=True) -> (Tensor, Tensor, Tensor)",
    convolution_backward,
    _fake_convolution_gradients,
)
torch.library.register_autograd(
    "coattend::convolution", _convolution_gradients, setup_context=save_first_two, lib=LIBRARY
)
