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
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of ``planes_conv2d`` for x, which is empty if it needs none, the weight and the bias."""
    with torch.no_grad():  # operators are not differentiated again: kernels may serve
        grad_x, *of_filters = conv2d_gradients(
            folded(grad), folded(x), weight, stride, padding, dilation, [of_x, True, True], groups
        )
    grad_weight, grad_bias = (t for t in of_filters if t is not None)
    planes = x.new_empty(0) if grad_x is None else in_format_of(grad_x.unflatten(1, x.shape[1:-2]), x)
    return planes, grad_weight.contiguous(), grad_bias


def _fake_convolution_gradients(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
    of_x: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    check_one_device("convolution_backward", grad, x, weight)
    planes = empty_like(x) if of_x else x.new_empty(0)
    return planes, weight.new_empty(weight.shape), weight.new_empty(weight.shape[0])


def _convolution_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    bias, *geometry, _ = ctx.rest
    of_x = ctx.needs_input_grad[0]
    grads = torch.ops.coattend.convolution_backward(grad, x, weight, *geometry, of_x)
    grad_x = grads[0] if of_x else None
    return grad_x, grads[1], None if bias is None else grads[2], *(None for _ in ctx.rest[1:])


define(
    "convolution(Tensor x, Tensor weight, Tensor? bias, int stride, int padding, int dilation, int groups, int? poses)"
    " -> Tensor",
    planes_conv2d,
    planes_conv2d,
)
# The last argument has a default because graphs that torch.compile has stored on disk may not give it.
define(
    "convolution_backward(Tensor grad, Tensor x, Tensor weight, int stride, int padding, int dilation, int groups,"
    " bool of_x=True) -> (Tensor, Tensor, Tensor)",
    convolution_backward,
    _fake_convolution_gradients,
)
torch.library.register_autograd(
    "coattend::convolution", _convolution_gradients, setup_context=save_first_two, lib=LIBRARY
)
