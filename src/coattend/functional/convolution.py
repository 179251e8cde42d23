"""``torch.ops.coattend.convolution``: a convolution between maps that torch.compile leaves alone."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.functional.checks import check_one_device
from coattend.functional.registry import LIBRARY, define, save_first_two


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
    poses: int | None,
) -> Tensor:
    """``conv2d`` of an image or a map onto a map with that many poses, or onto an image.

    An operator for the sake of torch.compile on CPUs only. If the compiler saw through it, the view from map to planes
    would come between an activation and the convolution that saves it. Views are not recomputed, so the sign of every
    activation would be saved as well, as booleans, which Inductor writes 30 times slower than the activation itself. It
    would also turn the maps channels-last, where loops over poses that share a norm's statistics are not vectorised.
    """
    y = F.conv2d(x.flatten(1, -3), weight, bias, stride, padding, dilation, groups)
    return y if poses is None else y.unflatten(1, (-1, poses))


def convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of :func:`convolution` with respect to x, the weight and the bias."""
    grad_x, grad_weight, grad_bias = torch.ops.aten.convolution_backward(
        grad.flatten(1, -3),
        x.flatten(1, -3),
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
    return grad_x.reshape(x.shape).contiguous(), grad_weight.contiguous(), grad_bias


def _fake_convolution_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, *rest: object
) -> tuple[Tensor, Tensor, Tensor]:
    check_one_device("convolution_backward", grad, x, weight)
    return x.new_empty(x.shape), weight.new_empty(weight.shape), weight.new_empty(weight.shape[0])


def _convolution_formula(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    bias, *geometry, _ = ctx.rest
    grads = torch.ops.coattend.convolution_backward(grad, x, weight, *geometry)
    return *grads[:2], None if bias is None else grads[2], *(None for _ in ctx.rest[1:])


define(
    "convolution(Tensor x, Tensor weight, Tensor? bias, int stride, int padding, int dilation, int groups, int? poses)"
    " -> Tensor",
    convolution,
    convolution,
)
define(
    "convolution_backward(Tensor grad, Tensor x, Tensor weight, int stride, int padding, int dilation, int groups)"
    " -> (Tensor, Tensor, Tensor)",
    convolution_backward,
    _fake_convolution_gradients,
)
torch.library.register_autograd(
    "coattend::convolution", _convolution_formula, setup_context=save_first_two, lib=LIBRARY
)
