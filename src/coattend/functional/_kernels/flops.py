"""The operations that ``torch.utils.flop_counter`` counts for the operators: products of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import conv_flop_count, register_flop_formula

from coattend.functional._kernels import image_gradient as _image_gradient  # noqa: F401  registers them
from coattend.functional._kernels import slice_convolution as _slice_convolution  # noqa: F401  registers it

OPERATORS = torch.ops.coattend


@register_flop_formula([OPERATORS.co_attention, OPERATORS.slice_attention])
def attention(x: Sequence[int], matrix: Sequence[int], *rest: Any, **named: Any) -> int:
    """Count the logits."""
    batch, (channels, order, _), (height, width) = x[0], matrix, x[-2:]
    return 2 * batch * channels * order**2 * height * width


@register_flop_formula([OPERATORS.co_attention_backward, OPERATORS.slice_attention_backward])
def attention_backward(grad: Sequence[int], x: Sequence[int], matrix: Sequence[int], *rest: Any, **named: Any) -> int:
    """Count the logits once more, and the gradients of x and of the matrix."""
    return 3 * attention(x, matrix)


@register_flop_formula(OPERATORS.convolution)
def convolution(x: Sequence[int], weight: Sequence[int], *rest: Any, out_shape: Sequence[int], **named: Any) -> int:
    """Count a convolution between planes."""
    return conv_flop_count(_planes(x), list(weight), _planes(out_shape))


@register_flop_formula(OPERATORS.convolution_backward)
def convolution_backward(
    grad: Sequence[int],
    x: Sequence[int],
    weight: Sequence[int],
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
    of_x: bool = True,
    **named: Any,
) -> int:
    """Count the gradients of the weight, and of x if it needs one."""
    return (1 + of_x) * conv_flop_count(_planes(x), list(weight), _planes(grad))


@register_flop_formula(OPERATORS.image_gradient)
def image_gradient(
    grad: Sequence[int], weight: Sequence[int], height: int, width: int, *rest: Any, **named: Any
) -> int:
    """Count the gradient of images of one channel."""
    return conv_flop_count([grad[0], 1, height, width], list(weight), list(grad))


@register_flop_formula(OPERATORS.image_filter_gradients)
def image_filter_gradients(
    grad: Sequence[int], images: Sequence[int], weight: Sequence[int], *rest: Any, **named: Any
) -> int:
    """Count the gradient of the filters."""
    return conv_flop_count(list(images), list(weight), list(grad))


@register_flop_formula(OPERATORS.slice_convolution)
def slice_convolution(
    x: Sequence[int], bank: Sequence[int], matrix: Sequence[int], *rest: Any, out_shape: Sequence[int], **named: Any
) -> int:
    """Count the convolution of each input pose with the filters that read it, and the logits."""
    batch, *_, height, width = out_shape
    responses = [batch, bank[0], height, width]
    return conv_flop_count(_planes(x), list(bank), responses) + attention(responses, matrix)


@register_flop_formula(OPERATORS.slice_convolution_backward)
def slice_convolution_backward(
    grad: Sequence[int], x: Sequence[int], bank: Sequence[int], matrix: Sequence[int], *rest: Any, **named: Any
) -> int:
    """Count all of it once more, and the gradients of x, of the bank and of the matrix."""
    return 3 * slice_convolution(x, bank, matrix, out_shape=grad)


def _planes(shape: Sequence[int]) -> list[int]:
    """Merge the poses of (batch, channels, group, height, width) with the channels."""
    return list(torch.Size(shape)) if len(shape) == 4 else [shape[0], shape[1] * shape[2], *shape[3:]]


@register_flop_formula(OPERATORS.filter_positions)
def filter_positions(v: Sequence[int], z: Sequence[int], bank: Sequence[int], *rest: Any, **named: Any) -> int:
    """Count the generated filters and the sum over their offsets."""
    positions, (rows, slices, taps, order) = v[0] * v[-2] * v[-1], bank
    return 2 * positions * order * taps * ((rows - 1) * slices + v[1])


@register_flop_formula(OPERATORS.filter_positions_backward)
def filter_positions_backward(
    grad: Sequence[int], v: Sequence[int], z: Sequence[int], bank: Sequence[int], *rest: Any, **named: Any
) -> int:
    """Count the filters once more, and the gradients of v, of the filters, of z and of the bank."""
    positions, (rows, slices, taps, order) = v[0] * v[-2] * v[-1], bank
    return 2 * positions * order * taps * (3 * (rows - 1) * slices + 2 * v[1])
