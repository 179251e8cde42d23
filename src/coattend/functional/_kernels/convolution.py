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
from coattend.functional.planes import planes_conv2d


def convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of ``planes_conv2d`` with respect to x, the weight and the bias."""
    grad_x, grad_weight, grad_bias = torch.ops.aten.convolution_backward(
        folded(grad),
        folded(x),
        weight,
        [len(weight)],
        [stride, stride],
        [padding, padding],
        [dilation, dilation],
        False,
        [0, 0],
        groups,
        [True, True, True],
    )
    return in_format_of(grad_x.unflatten(1, x.shape[1:-2]), x), grad_weight.contiguous(), grad_bias


def _fake_convolution_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, *rest: object
) -> tuple[Tensor, Tensor, Tensor]:
    check_one_device("convolution_backward", grad, x, weight)
    return empty_like(x), weight.new_empty(weight.shape), weight.new_empty(weight.shape[0])


def _convolution_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    bias, *geometry, _ = ctx.rest
    grads = torch.ops.coattend.convolution_backward(grad, x, weight, *geometry)
    return *grads[:2], None if bias is None else grads[2], *(None for _ in ctx.rest[1:])


define(
    "convolution(Tensor x, Tensor weight, Tensor? bias, int stride, int padding, int dilation, int groups, int? poses)"
    " -> Tensor",
    planes_conv2d,
    planes_conv2d,
)
define(
    "convolution_backward(Tensor grad, Tensor x, Tensor weight, int stride, int padding, int dilation, int groups)"
    " -> (Tensor, Tensor, Tensor)",
    convolution_backward,
    _fake_convolution_gradients,
)
torch.library.register_autograd(
    "coattend::convolution", _convolution_gradients, setup_context=save_first_two, lib=LIBRARY
)
