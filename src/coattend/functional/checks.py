"""Checks of the arguments of functions, with messages that say what is expected, what came and what to do."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from coattend.functional.dispatch import autocasts
from coattend.functional.geometry import Geometry, check_fits
from coattend.groups import Filters, FiniteGroup, Rings, filter_rings
from coattend.groups.axioms import whole_number

IMAGE = "(batch, channels, height, width)"
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
    """Require a dense floating-point tensor with a number of axes."""
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
    """Apply ``index_select`` with an index of any shape, flattened, and name the function if the index does not fit."""
    try:
        return values.index_select(axis, index.flatten())
    except (IndexError, RuntimeError) as reason:
        raise ValueError(
            f"{function} expects indices from 0 to {values.shape[axis] - 1} on the device {values.device}, got others "
            f"({reason}); build table and filter for the same group and kernel."
        ) from reason


def check_group(function: str, group: object) -> None:
    """Require a group instead of its name."""
    if not isinstance(group, FiniteGroup):
        raise ValueError(
            f"{function} expects a FiniteGroup, got {_described(group)}; pass coattend.get_group('p4') for a name."
        )


def check_planar_group(owner: str, group: FiniteGroup) -> None:
    """Require a group that acts on the plane, or one without an action, which is refused where its filters move."""
    if group.dimension not in (None, 2):
        raise ValueError(
            f"{owner} moves images, and {group.name} acts on {group.dimension} dimensions; pass a group with a planar "
            "action, such as cyclic(n) or dihedral(n)."
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


def check_attention(function: str, x: Tensor, matrix: Tensor, *, is_planar: bool = False) -> None:
    """Require a map, with any number of spatial axes unless planar, and one matrix per channel over its poses."""
    check_tensor(function, "x", x, MAP, 5 if is_planar else 4, or_more=not is_planar)
    check_tensor(function, "the matrix", matrix, MATRICES, 3)
    channels, order = x.shape[1:3]
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


@functools.lru_cache(maxsize=256)  # a network checks the same rows in every step
def check_rows(function: str, rows: tuple[int, ...], channel_step: int, planes: int) -> None:
    """Require rows that name every plane once, so that kernels read no other memory and write every gradient."""
    channels = planes // len(rows)
    numbers = [channel * channel_step + row for channel in range(channels) for row in rows]
    if sorted(numbers) != list(range(len(numbers))):
        raise ValueError(
            f"{function} expects channel * channel_step + row to name each of the {len(numbers)} planes once for "
            f"{channels} channels and {len(rows)} rows, got numbers from {min(numbers)} to {max(numbers)}, "
            f"{len(set(numbers))} of them different, with channel_step={channel_step}; pass the rows and the step of a "
            "SliceCoAttentiveConv2d."
        )


def check_parameters(
    function: str,
    weight: Tensor,
    bias: Tensor | None,
    group: FiniteGroup,
    rank: int,
    filters: Filters,
    kernel_size: int | None,
    *,
    transposed: int = 0,
) -> int:
    """Require the filters of a convolution, one bias per output channel or none, and a group that moves images.

    ``rank`` is that of k x k filters; coefficients of steerable ones have one axis less. Filters of a transposed
    convolution are (in, out / groups, ...), and ``transposed`` is its number of channel groups. Returns the kernel's
    size.
    """
    check_group(function, group)
    check_planar_group(function, group)
    axes, size = "(in, out" if transposed else "(out, in", whole_number(kernel_size)
    axes += "" if rank == 4 else ", slices"
    if kernel_size is not None and (size is None or size < 1):
        raise ValueError(f"{function} expects kernel_size to be a whole number of at least 1, got {kernel_size!r}.")
    rings = filter_rings(filters, size or 1)
    check_tensor(
        function, "weight", weight, f"{axes}, k, k)" if rings is None else f"{axes}, coefficients)", rank - bool(rings)
    )
    if 0 in weight.shape:
        raise ValueError(f"{function} expects a weight with at least one number, got {tuple(weight.shape)}.")
    _check_size(function, weight, rings, size)
    if bias is not None:
        check_tensor(function, "bias", bias, "(out,)", 1)
        channels = weight.shape[1] * transposed if transposed else len(weight)
        if len(bias) != channels:
            raise ValueError(f"{function} expects one bias for each of {channels} output channels, got {len(bias)}.")
    return size or weight.shape[-1]


def _check_size(function: str, weight: Tensor, rings: Rings | None, kernel_size: int | None) -> None:
    """Require a kernel size that is that of k x k filters, or one with which coefficients form filters."""
    if rings is None and kernel_size not in (None, weight.shape[-1]):
        raise ValueError(
            f"{function} expects filters of the size kernel_size={kernel_size}, got a weight {tuple(weight.shape)}; "
            "leave out kernel_size, which only steerable filters need."
        )
    if rings is None:
        return
    if kernel_size is None:
        raise ValueError(f"{function} expects kernel_size for the coefficients of steerable filters, got none.")
    if weight.shape[-1] != rings.size:
        raise ValueError(
            f"{function} expects {rings.size} coefficients per filter for Rings(orders={rings.orders}), got a weight "
            f"{tuple(weight.shape)}; the last axis is that of the coefficients."
        )


def check_input(function: str, x: Tensor, weight: Tensor, geometry: Geometry, order: int | None) -> None:
    """Require an image, or with ``order`` a map, that the filters of a convolution fit."""
    axes, groups = IMAGE if order is None else MAP, geometry.groups
    check_tensor(function, "x", x, axes, 4 if order is None else 5)
    channels = weight.shape[1] * groups
    if x.shape[1] != channels or len(weight) % groups or order not in (None, x.shape[2]):
        poses = "" if order is None else f" and {order} poses"
        raise ValueError(
            f"{function} expects {channels} channels{poses} in x {axes} and a multiple of {groups} filters for "
            f"groups={groups} and a weight {tuple(weight.shape)}, got x {tuple(x.shape)}; let the weight have "
            "(out, in / groups, ...) filters."
        )
    check_same_type(function, x, weight)
    check_fits(function, x, geometry)


def check_same_type(function: str, x: Tensor, weight: Tensor) -> None:
    """Require an input on the device of the filters, and of their dtype unless autocast converts it."""
    check_one_device(function, x, weight)
    if x.dtype != weight.dtype and not autocasts(x):
        raise ValueError(
            f"{function} expects x in the dtype of the weight, {weight.dtype}, got {x.dtype}; convert one of them or "
            "run under torch.autocast."
        )


def checked_relative(
    owner: str, group: FiniteGroup, relative: Iterable[int] | None, slices: int | None = None
) -> tuple[int, ...]:
    """Return relative poses as a tuple, by default the whole group: different elements, one for each slice if given."""
    if relative is None:
        poses = tuple(group.elements)
    else:
        given = list(relative) if isinstance(relative, Iterable) else [relative]
        poses = tuple(t for t in map(whole_number, given) if t is not None and 0 <= t < group.order)
        if not given or len(set(poses)) < len(given):
            raise ValueError(
                f"{owner} expects relative to hold different elements of {group.name}, numbers from 0 to "
                f"{group.order - 1}, at least one, got {given}."
            )
    if slices is not None and len(poses) != slices:
        raise ValueError(
            f"{owner} expects a weight with one slice for each of {len(poses)} relative poses, got {slices} slices; "
            "pass the relative poses of the slices as relative=."
        )
    return poses


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
            f"{function} expects a dense floating-point gradient {tuple(shape)}, the shape of the result, got "
            f"{_described(grad)}; pass one of that shape."
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
        return "torch.as_tensor converts arrays"
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
