"""The kernels of a convolution with co-attention, a norm and a ReLU after it, called through ctypes.

Maps are float32 or bfloat16 on a CPU, everything fits together, groups have 2, 4 or 8 elements, and the planes that are
written are a multiple of 8: the callers see to it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from coattend.functional._kernels import cpu
from coattend.functional._kernels.rows import TYPES, ConvShape, NormShape, row_order
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
    """Return ``ReLU(norm(attend(conv2d(x, bank, conv_bias))))``.

    Args:
        x: an image or map.
        bank: (out * group, planes of x, k, k).
        conv_bias: (out * group,) or None.
        padding: zeros around the planes.
        matrix: of co-attention, (out, group, group).
        weight, bias, statistics, eps: of the norm, see :func:`coattend.functional.normalization.normalize`.
        relu: whether a ReLU follows the norm.
    """
    x, z = channels_last(x), _empty_map(x, bank, padding, matrix)
    parameters = (bank, _bias(bank, conv_bias), matrix, weight, bias, *statistics)
    _call("attention", x, parameters, (z,), padding, eps, relu)
    return z


def conv_statistics(
    x: Tensor, bank: Tensor, conv_bias: Tensor | None, padding: int, matrix: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the convolution of x, what attention makes of it, and the mean and variance of that over each channel.

    See :func:`conv_attention`.
    """
    x, y, z = channels_last(x), *(_empty_map(x, bank, padding, matrix) for _ in range(2))
    mean, variance = (x.new_empty(len(matrix), dtype=torch.float32) for _ in range(2))
    _call("statistics", x, (bank, _bias(bank, conv_bias), matrix), (y, z, mean, variance), padding)
    return y, z, mean, variance


def _empty_map(x: Tensor, bank: Tensor, padding: int, matrix: Tensor) -> Tensor:
    height, width = (size + 2 * padding - bank.shape[-1] + 1 for size in x.shape[-2:])
    return empty_like(channels_last(x), (len(x), *matrix.shape[:2], height, width))


def _bias(bank: Tensor, conv_bias: Tensor | None) -> Tensor:
    return bank.new_zeros(len(bank)) if conv_bias is None else conv_bias


def _call(
    name: str,
    x: Tensor,
    parameters: Sequence[Tensor | None],
    results: Sequence[Tensor],
    padding: int,
    eps: float = 0,
    relu: bool = False,
) -> None:
    """Call a kernel; the first parameter are the filters, the first result is a map."""
    rows, sources = row_order(results[0])
    columns, channels, k, _ = parameters[0].shape  # type: ignore[union-attr]
    conv = ConvShape(len(x), *x.shape[-2:], 1, channels, columns, k, padding, torch.get_num_threads())
    given = [None if tensor is None else tensor.float().contiguous() for tensor in parameters]
    addresses = (ctypes.c_void_p(None if tensor is None else tensor.data_ptr()) for tensor in (x, *given, *results))
    kernel = getattr(cpu.library(), f"coattend_conv_{name}_{TYPES[x.dtype]}")
    kernel(*addresses, ctypes.byref(Shape(NormShape(rows, False, relu, eps), conv)))
    del sources
