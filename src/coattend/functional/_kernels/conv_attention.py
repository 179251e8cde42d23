"""The kernel of a convolution with co-attention, a norm and a ReLU after it, called through ctypes; for evaluation."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from coattend.functional._kernels import cpu
from coattend.functional._kernels.rows import ConvShape, NormShape, row_order
from coattend.functional.layout import channels_last, empty_like


class Shape(ctypes.Structure):
    """``ConvAttentionShape`` of conv_attention.cpp, field by field."""

    _fields_ = (("norm", NormShape), ("conv", ConvShape))


def conv_attention(
    x: Tensor,
    bank: Tensor,
    conv_bias: Tensor | None,
    padding: int,
    matrix: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: tuple[Tensor, Tensor],
    eps: float,
    relu: bool,
) -> Tensor:
    """Return ``ReLU(norm(attend(conv2d(x, bank, conv_bias))))``; float32, with tables that fit together.

    Args:
        x: an image or map.
        bank: (out * group, planes of x, k, k).
        conv_bias: (out * group,) or None.
        padding: zeros around the planes.
        matrix: of co-attention, (out, group, group).
        weight, bias, statistics, eps: of the norm, see :func:`coattend.functional.normalization.normalize`.
        relu: whether a ReLU follows the norm.
    """
    x = channels_last(x)
    (columns, channels, k, _), (out, order, _) = bank.shape, matrix.shape
    height, width = (size + 2 * padding - k + 1 for size in x.shape[-2:])
    z = empty_like(x, (len(x), out, order, height, width))
    start = x.new_zeros(columns) if conv_bias is None else conv_bias
    parameters = (bank, start, matrix, weight, bias, *statistics)
    tensors = (x, *(None if tensor is None else tensor.contiguous() for tensor in parameters), z)
    addresses = [ctypes.c_void_p(None if tensor is None else tensor.data_ptr()) for tensor in tensors]
    rows, sources = row_order(z)
    conv = ConvShape(len(x), *x.shape[-2:], 1, channels, columns, k, padding, torch.get_num_threads())
    kernel = cpu.library().coattend_conv_attention_float  # type: ignore[union-attr]
    kernel(*addresses, ctypes.byref(Shape(NormShape(rows, False, relu, eps), conv)))
    del sources
    return z
