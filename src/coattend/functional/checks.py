"""What the functions of this package require of their arguments, and how they say so."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from coattend.groups import FiniteGroup

MAP = "(batch, channels, group, height, width)"
PLANES = "(batch, planes, height, width)"
MATRICES = "(channels, group, group)"
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def check_tensor(
    function: str,
    name: str,
    value: object,
    axes: str,
    rank: int,
    *,
    or_more: bool = False,
    integers_too: bool = False,
) -> None:
    """Require a dense tensor of floating-point numbers with so many axes."""
    if (
        not isinstance(value, Tensor)
        or value.is_nested
        or value.layout is not torch.strided
        or not (value.is_floating_point() or (integers_too and value.dtype in INTEGERS))
        or (value.ndim < rank if or_more else value.ndim != rank)
    ):
        raise ValueError(
            f"{function} expects {name} to be a dense floating-point tensor {axes}, got {_described(value)}; "
            f"{_remedy(value)}."
        )


def check_table(function: str, name: str, value: object, axes: str, rank: int | None = None) -> None:
    """Require a tensor of indices."""
    if (
        not isinstance(value, Tensor)
        or value.dtype not in (torch.int64, torch.int32)
        or (rank is not None and value.ndim != rank)
    ):
        raise ValueError(
            f"{function} expects {name} to be a tensor of integers {axes}, got {_described(value)}; "
            "pass the tables of the group, such as torch.tensor(group.relative)."
        )


def select(function: str, values: Tensor, axis: int, index: Tensor) -> Tensor:
    """``index_select`` for any shape of the index, flattened, which says whose index it was that does not fit."""
    try:
        return values.index_select(axis, index.flatten())
    except (IndexError, RuntimeError) as reason:
        raise ValueError(
            f"{function} expects indices from 0 to {values.shape[axis] - 1} on the device {values.device}, got others "
            f"({reason}); build table and filter for the same group and kernel."
        ) from reason


def check_group(function: str, group: object) -> None:
    """Require a group, not its name."""
    if not isinstance(group, FiniteGroup):
        raise ValueError(
            f"{function} expects a FiniteGroup, got {_described(group)}; pass coattend.get_group('p4') for a name."
        )


def check_one_device(function: str, *tensors: Tensor) -> None:
    """Require tensors on one device: memory of another cannot be read."""
    device = tensors[0].device
    for tensor in tensors:
        if tensor.device != device:
            raise ValueError(
                f"{function} expects all tensors on one device, got {' and '.join(str(t.device) for t in tensors)}; "
                "move them with .to(device)."
            )


def check_attention(function: str, x: Tensor, matrix: Tensor) -> None:
    """Require a map and one matrix per channel over its poses."""
    check_tensor(function, "x", x, MAP, 5)
    check_tensor(function, "the matrix", matrix, MATRICES, 3)
    _, channels, order, _, _ = x.shape
    if matrix.shape != (channels, order, order) or order == 0:
        raise ValueError(
            f"{function} expects one matrix {(channels, order, order)} {MATRICES} and at least one pose for a map "
            f"{tuple(x.shape)}, got {tuple(matrix.shape)}; pass matrices of as many channels and poses as the map has."
        )
    check_one_device(function, x, matrix)


def check_slices(function: str, planes: Tensor, matrix: Tensor, rows: Sequence[int], channel_step: int) -> None:
    """Require planes, one matrix per channel and slice, and one row per slice and pose."""
    check_tensor(function, "planes", planes, PLANES, 4)
    check_tensor(function, "the matrix", matrix, "(channels * slices, group, group)", 3)
    if not isinstance(rows, Sequence) or {*map(type, rows), type(channel_step)} != {int}:
        raise ValueError(
            f"{function} expects rows to be a list of whole numbers and channel_step to be another, got "
            f"{rows!r} and {channel_step!r}; pass the rows and the step of a SliceCoAttentiveConv2d."
        )
    number, order, targets = matrix.shape
    slices = len(rows) // order if order else 0
    count = planes.shape[1]
    if order != targets or slices * order != len(rows) or slices == 0 or number % slices or number * order != count:
        raise ValueError(
            f"{function} expects matrices (channels * slices, group, group), a row for each slice and pose, and a "
            f"plane for each channel, slice and pose, got matrices {tuple(matrix.shape)}, {len(rows)} rows and planes "
            f"{tuple(planes.shape)}; pass {number * order} planes and a multiple of {order} rows."
        )
    check_one_device(function, planes, matrix)


@functools.lru_cache(maxsize=256)  # a network asks the same in every step
def check_rows(function: str, rows: tuple[int, ...], channel_step: int, planes: int) -> None:
    """Require rows that name every plane of an image once: no other memory is read, and every gradient is written."""
    channels = planes // len(rows)
    numbers = [channel * channel_step + row for channel in range(channels) for row in rows]
    if sorted(numbers) != list(range(len(numbers))):
        raise ValueError(
            f"{function} expects channel * channel_step + row to name each of the {len(numbers)} planes once for "
            f"{channels} channels and {len(rows)} rows, got numbers from {min(numbers)} to {max(numbers)}, "
            f"{len(set(numbers))} of them different, with channel_step={channel_step}; pass the rows and the step of a "
            "SliceCoAttentiveConv2d."
        )


def check_windows(function: str, x: Tensor) -> None:
    """Require planes that windows of 2x2 cover."""
    check_tensor(function, "x", x, "(batch, ..., height, width)", 4, or_more=True, integers_too=True)
    height, width = x.shape[-2:]
    if height % 2 or width % 2 or height == 0 or width == 0:
        raise ValueError(
            f"{function} expects an even height and width for windows of 2x2, at least 2, got {height} x {width}; pad "
            "or crop the tensor, or use SpatialMaxPool2d(2)."
        )


def check_gradient(function: str, grad: Tensor, shape: Sequence[int], x: Tensor) -> None:
    """Require the gradient of a result of this shape."""
    if grad.shape != torch.Size(shape) or not grad.is_floating_point() or grad.layout is not torch.strided:
        raise ValueError(
            f"{function} expects a dense floating-point gradient {tuple(shape)}, that of the result, got "
            f"{_described(grad)}; pass one of the result's shape."
        )
    check_one_device(function, x, grad)


def _described(value: object) -> str:
    if not isinstance(value, Tensor):
        is_plain = value is None or isinstance(value, (str, int, float))
        return repr(value) if is_plain else f"a {type(value).__module__}.{type(value).__qualname__}"
    if value.is_nested:
        return "a nested tensor"
    kind = "" if value.layout is torch.strided else f" {str(value.layout).removeprefix('torch.').strip('_')}"
    return f"a {str(value.dtype).removeprefix('torch.')}{kind} tensor {tuple(value.shape)}"


def _remedy(value: object) -> str:
    if not isinstance(value, Tensor):
        return "torch.as_tensor makes one of an array"
    if value.is_nested:
        return "pad it to a dense one with torch.nested.to_padded_tensor"
    if value.layout is not torch.strided:
        return "convert it with .to_dense()"
    if value.is_quantized:
        return "convert it with .dequantize()"
    if value.is_complex():
        return "pass .real and .imag one after the other"
    if not value.is_floating_point():
        return "convert it with .float()"
    return "add, merge or remove axes"
