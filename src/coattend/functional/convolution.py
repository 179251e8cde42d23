"""Convolutions between images and maps on a group.

Each function turns the filter through all poses, see :mod:`coattend.functional.filter_bank`, and applies one plain
convolution. Layers pass the index tables that they own; without tables a function computes those of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.functional.attention import attend, attend_slices, attention_matrices
from coattend.functional.checks import check_bias, check_group, check_input, check_tensor, checked_relative
from coattend.functional.dispatch import autocasts, decomposes, is_eager
from coattend.functional.filter_bank import (
    lifting_filters,
    pose_filters,
    projection_filters,
    slice_filters,
    table_filters,
)
from coattend.functional.geometry import Geometry, Size, check_fits, checked_geometry
from coattend.functional.pose_blocks import blocks_are_faster
from coattend.functional.tables import BlockTables, GroupTables, SliceTables, group_tables, slice_tables
from coattend.groups import FiniteGroup, Interpolation, filter_turns

Attend = Callable[[Tensor], Tensor]
AttendSlices = Callable[[Tensor, list[int], int], Tensor]

# On CPUs a batch is convolved in parts whose intermediate planes are still in the cache when they are read again. Parts
# of responses are also small enough that the allocator reuses their memory: fresh pages cost more than the attention.
BLOCK_BYTES = 4 * 2**20
RESPONSE_BYTES = 12 * 2**20


def lifting_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    group: FiniteGroup,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
    interpolation: Interpolation = "bicubic",
    *,
    turns: Tensor | None = None,
) -> Tensor:
    """Correlate an image with every pose of a filter: ``y[o, g] = sum_i x[i] * (g.weight[o, i]) + bias[o]``.

    Args:
        x: an image (batch, in, height, width).
        weight: (out, in / groups, k, k).
        bias: (out,) or None.
        group: the group whose elements are the poses.
        stride, padding, dilation, groups, padding_mode: as in ``torch.nn.Conv2d``, the same along both axes.
        interpolation: how filters turn by other angles than multiples of 90 degrees.
        turns: the result of :func:`coattend.groups.filter_turns`, if it is at hand.

    Returns a map (batch, out, group, height', width').
    """
    name = "lifting_conv2d"
    geometry = _checked(name, weight, bias, group, 4, stride, padding, dilation, groups, padding_mode)
    check_input(name, x, weight, groups)
    bank = lifting_filters(weight, _turns(group, weight, interpolation) if turns is None else turns)
    return _convolve(name, x, bank, repeat_bias(bias, group.order), geometry, poses=group.order)


def group_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    group: FiniteGroup,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
    interpolation: Interpolation = "bicubic",
    relative: Iterable[int] | None = None,
    *,
    tables: GroupTables | None = None,
) -> Tensor:
    """Correlate a map on the group with every pose of a filter on the group.

    ``y[o, g] = sum_i sum_h x[i, h] * (g.weight[o, i, g^-1 h]) + bias[o]``, the sum being over input poses h = g t with
    t in ``relative`` only, if that is given.

    Args:
        x: a map (batch, in, group, height, width).
        weight: (out, in / groups, group, k, k), or one slice for each of ``relative``.
        bias: (out,) or None.
        group: the group of the third axis.
        stride, padding, dilation, groups, padding_mode, interpolation: see :func:`lifting_conv2d`.
        relative: different elements of the group.
        tables: the tables of :func:`coattend.functional.tables.group_tables`, if they are at hand.

    Returns a map (batch, out, group, height', width').
    """
    name = "group_conv2d"
    geometry = _checked(name, weight, bias, group, 5, stride, padding, dilation, groups, padding_mode)
    check_input(name, x, weight, groups, group.order)
    if tables is None:
        poses = checked_relative(name, group, relative, weight.shape[2])
        tables = _group_tables(weight, group, poses, groups, interpolation)
    bank = table_filters(weight, tables, groups)
    if tables.blocks is not None:
        return _convolve_blocks(name, x, bank, bias, geometry, tables.blocks)
    return _convolve(name, x, bank, repeat_bias(bias, group.order), geometry, poses=group.order)


def projection_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    group: FiniteGroup,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
    interpolation: Interpolation = "bicubic",
    attention: Tensor | Attend | None = None,
    *,
    turns: Tensor | None = None,
) -> Tensor:
    """Correlate each pose of a map with the filter in that pose and sum the poses.

    ``y[o] = sum_h A( sum_i x[i, h] * (h.weight[o, i]) ) + bias[o]``

    Args:
        x: a map (batch, in, group, height, width).
        weight: (out, in / groups, k, k).
        bias: (out,) or None.
        group: the group of the third axis.
        stride, padding, dilation, groups, padding_mode, interpolation: see :func:`lifting_conv2d`.
        attention: A, by the weights of :func:`co_attention` for the output channels, or a function from maps to maps;
            None for none.
        turns: the result of :func:`coattend.groups.filter_turns`, if it is at hand.

    Returns an image (batch, out, height', width').
    """
    name = "projection_conv2d"
    geometry = _checked(name, weight, bias, group, 4, stride, padding, dilation, groups, padding_mode)
    check_input(name, x, weight, groups, group.order)
    turns = _turns(group, weight, interpolation) if turns is None else turns
    if attention is None:
        return _convolve(name, x, projection_filters(weight, turns), bias, geometry)
    # One convolution per pose, run as channel groups of a single one: hence the pose-major order.
    pose_major = geometry._replace(groups=group.order * geometry.groups)
    planes = _convolve(name, x.transpose(1, 2), pose_filters(weight, turns), None, pose_major)
    responses = planes.unflatten(1, (group.order, len(weight))).transpose(1, 2)
    if callable(attention):
        attended = attention(responses)
    else:
        attended = attend(responses, attention_matrices(name, attention, len(weight), group))
    return add_bias(attended.sum(dim=2), bias)


def slice_attentive_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    group: FiniteGroup,
    attention: Tensor | AttendSlices,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
    interpolation: Interpolation = "bicubic",
    relative: Iterable[int] | None = None,
    *,
    tables: SliceTables | None = None,
    in_parts: bool = True,
) -> Tensor:
    """Convolve on the group and attend to the responses of each filter slice on its own, before their sum.

    ``y[o, g] = sum_t A_{o,t}( { sum_i x[i, g' t] * (g'.weight[o, i, t]) }_{g'} )(g) + bias[o]``

    Args:
        x: a map (batch, in, group, height, width).
        weight: (out, in / groups, group, k, k), or one slice for each of ``relative``.
        bias: (out,) or None.
        group: the group of the third axis.
        attention: A, by the weights of :func:`co_attention` for out * slices channels, channel ``o * slices + t``, or a
            function with the arguments of :meth:`coattend.nn.PoseAttention.attend_slices`.
        stride, padding, dilation, groups, padding_mode, interpolation: see :func:`lifting_conv2d`.
        relative: see :func:`group_conv2d`.
        tables: the tables of :func:`coattend.functional.tables.slice_tables`, if they are at hand.
        in_parts: whether a large batch may be convolved and attended to in parts.

    Returns a map (batch, out, group, height', width').
    """
    name = "slice_attentive_conv2d"
    geometry = _checked(name, weight, bias, group, 5, stride, padding, dilation, groups, padding_mode)
    check_input(name, x, weight, groups, group.order)
    if tables is None:
        poses = checked_relative(name, group, relative, weight.shape[2])
        tables = slice_tables(group, weight.shape[-1], poses, len(weight), interpolation)
    slices = len(tables.rows) // group.order
    if not callable(attention):
        matrices = attention_matrices(name, attention, len(weight) * slices, group)
        attention = lambda planes, rows, step: attend_slices(planes, matrices, rows, step)  # noqa: E731
    bank = slice_filters(weight, tables.turns.to(weight.device), tables.poses.to(weight.device))
    by_pose = geometry._replace(groups=group.order * geometry.groups)
    pixels = geometry.output_size(x.shape[-2]) * geometry.output_size(x.shape[-1])
    most = RESPONSE_BYTES if in_parts else None
    attended = [
        attention(_convolve(name, part, bank, None, by_pose), tables.rows, slices)
        for part in _parts(x.transpose(1, 2), len(bank) * pixels * x.element_size(), most)
    ]
    return add_bias(torch.cat(attended) if len(attended) > 1 else attended[0], bias)


def repeat_bias(bias: Tensor | None, poses: int) -> Tensor | None:
    """Return one bias per plane of a map, given one per channel."""
    return None if bias is None else bias.repeat_interleave(poses)


def add_bias(y: Tensor, bias: Tensor | None) -> Tensor:
    """Add one bias per channel, the second axis."""
    return y if bias is None else y + bias.reshape(-1, *(1 for _ in y.shape[2:]))


def planes_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
    poses: int | None,
) -> Tensor:
    """Apply ``conv2d`` to the planes of an image or a map, with the poses among the channels."""
    y = F.conv2d(x.flatten(1, -3), weight, bias, stride, padding, dilation, groups)
    return y if poses is None else y.unflatten(1, (-1, poses))


def _checked(
    name: str,
    weight: Tensor,
    bias: Tensor | None,
    group: FiniteGroup,
    rank: int,
    stride: Size,
    padding: Size | str,
    dilation: Size,
    groups: int,
    padding_mode: str,
) -> Geometry:
    check_group(name, group)
    axes = "(out, in, k, k)" if rank == 4 else "(out, in, slices, k, k)"
    check_tensor(name, "weight", weight, axes, rank)
    check_bias(name, bias, len(weight))
    return checked_geometry(name, weight.shape[-1], stride, padding, dilation, groups, padding_mode)


def _turns(group: FiniteGroup, weight: Tensor, interpolation: Interpolation) -> Tensor:
    return filter_turns(group, weight.shape[-1], interpolation, torch.float64).to(weight.device)


def _group_tables(
    weight: Tensor, group: FiniteGroup, relative: tuple[int, ...], groups: int, interpolation: Interpolation
) -> GroupTables:
    out_channels, in_channels, _, k, _ = weight.shape
    tables = group_tables(group, k, relative, in_channels * groups, out_channels, groups, interpolation)
    blocks = tables.blocks
    if blocks is not None and blocks_are_faster(blocks.layout, in_channels, out_channels // groups, k):
        blocks = BlockTables(blocks.layout, *(table.to(weight.device) for table in blocks[1:]))
    else:
        blocks = None
    return GroupTables(tables.turns.to(weight.device), tables.relative.to(weight.device), blocks)


def _convolve(
    name: str, x: Tensor, bank: Tensor, bias: Tensor | None, geometry: Geometry, poses: int | None = None
) -> Tensor:
    """Convolve the planes of an image or a map with a bank; the result is a map with ``poses``, else an image."""
    check_fits(name, x, geometry)
    _, stride, padding, dilation, groups, padding_mode = geometry
    if padding_mode != "zeros" and padding > 0:
        x = F.pad(x.flatten(1, -3), (padding,) * 4, mode=padding_mode)
        padding = 0
    if torch.compiler.is_compiling() and not decomposes(x) and not autocasts(x):
        return torch.ops.coattend.convolution(x, bank, bias, stride, padding, dilation, groups, poses)
    return planes_conv2d(x, bank, bias, stride, padding, dilation, groups, poses)


def _convolve_blocks(
    name: str, x: Tensor, bank: Tensor, bias: Tensor | None, geometry: Geometry, tables: BlockTables
) -> Tensor:
    """Gather the planes that the blocks read, convolve the blocks as channel groups, and sort what they write."""
    order = x.shape[2]
    by_block = geometry._replace(groups=len(tables.layout.outputs) * geometry.groups)
    biases = None if bias is None else tables.layout.biases(bias, geometry.groups)
    parts = []
    for part in _parts(
        x.flatten(1, 2), len(tables.input_planes) * x.shape[-2:].numel() * x.element_size(), BLOCK_BYTES
    ):
        planes = _convolve(name, part.index_select(1, tables.input_planes), bank, biases, by_block)
        parts.append(planes.index_select(1, tables.output_planes).unflatten(1, (-1, order)))
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _parts(x: Tensor, image_bytes: int, most: int | None) -> tuple[Tensor, ...]:
    """Split a batch on a CPU so that each part needs at most so many bytes; graphs get it whole."""
    if most is None or x.device.type != "cpu" or not is_eager(x):
        return (x,)
    return x.split(max(1, most // max(1, image_bytes)))
