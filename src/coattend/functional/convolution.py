"""Convolutions between images and maps on a group.

Each function turns the filter through all poses, see :mod:`coattend.functional.filter_bank`, and applies one plain
convolution. A layer passes its index tables, and has checked its input; without tables a function checks its arguments
and computes the tables of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

from coattend.functional.attention import attend, attend_slices, attention_matrices
from coattend.functional.checks import check_input, check_parameters, checked_relative
from coattend.functional.filter_bank import (
    lifting_filters,
    pose_filters,
    projection_filters,
    slice_filters,
    table_filters,
    turn_filters,
)
from coattend.functional.geometry import Size, checked_geometry
from coattend.functional.layout import joined, poses_first, prefers_channels_last
from coattend.functional.planes import (
    RESPONSE_BYTES,
    add_bias,
    batch_parts,
    convolve_blocks,
    convolve_planes,
    convolve_poses,
    convolve_slices,
    reads_own_pose,
    repeat_bias,
    slices_stay_in_cache,
)
from coattend.functional.pose_blocks import blocks_are_faster
from coattend.functional.tables import (
    BlockTables,
    GroupTables,
    SliceTables,
    Turns,
    group_tables,
    slice_tables,
    turn_tables,
)
from coattend.groups import Filters, FiniteGroup

Attend = Callable[[Tensor], Tensor]
AttendSlices = Callable[[Tensor, list[int], int], Tensor]


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
    filters: Filters = "free",
    *,
    kernel_size: int | None = None,
    turns: Turns | None = None,
    bank: Tensor | None = None,
) -> Tensor:
    """Correlate an image with every pose of a filter: ``y[o, g] = sum_i x[i] * (g.weight[o, i]) + bias[o]``.

    Args:
        x: an image (batch, in, height, width).
        weight: (out, in / groups, k, k), or (out, in / groups, coefficients) of steerable filters.
        bias: (out,) or None.
        group: the group whose elements are the poses.
        stride, padding, dilation, groups, padding_mode: as in ``torch.nn.Conv2d``, the same along both axes.
        filters: what the weight holds, and how it turns by other angles than multiples of 90 degrees: k x k taps, by
            the best linear map ("free") or by interpolation ("bicubic", "bilinear"), or the coefficients of a basis,
            ("steerable", or :class:`coattend.Rings`); docs/conventions.md compares them.
        kernel_size: of steerable filters, whose weight does not show it.
        turns: the tables of :func:`coattend.functional.tables.turn_tables`, if they are at hand.
        bank: the turned filters, see :mod:`coattend.functional.filter_bank`, if they are at hand.

    Returns a map (batch, out, group, height', width').

    >>> import torch
    >>> from coattend.groups import cyclic
    >>> lifting_conv2d(torch.zeros(2, 1, 28, 28), torch.zeros(10, 1, 3, 3), None, cyclic(4)).shape
    torch.Size([2, 10, 4, 26, 26])
    """
    name, arguments = "lifting_conv2d", (stride, padding, dilation, groups, padding_mode)
    if turns is None:
        k = check_parameters(name, weight, bias, group, 4, filters, kernel_size)
        check_input(name, x, weight, checked_geometry(name, k, *arguments), None)
        turns = turn_tables(group, k, filters).to(weight.device)
    geometry = checked_geometry(name, turns.kernel_size, *arguments)
    bank = lifting_filters(weight, turns) if bank is None else bank
    return convolve_planes(x, bank, repeat_bias(bias, group.order), geometry, group.order)


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
    filters: Filters = "free",
    relative: Iterable[int] | None = None,
    *,
    kernel_size: int | None = None,
    tables: GroupTables | None = None,
    bank: Tensor | None = None,
) -> Tensor:
    """Correlate a map on the group with every pose of a filter on the group.

    ``y[o, g] = sum_i sum_h x[i, h] * (g.weight[o, i, g^-1 h]) + bias[o]``, the sum being over input poses h = g t with
    t in ``relative`` only, if that is given.

    Args:
        x: a map (batch, in, group, height, width).
        weight: (out, in / groups, group, k, k), or one slice for each of ``relative``; (out, in / groups, group,
            coefficients) of steerable filters.
        bias: (out,) or None.
        group: the group of the third axis.
        stride, padding, dilation, groups, padding_mode, filters, kernel_size: see :func:`lifting_conv2d`.
        relative: different elements of the group.
        tables: the tables of :func:`coattend.functional.tables.group_tables`, if they are at hand.
        bank: see :func:`lifting_conv2d`.

    Returns a map (batch, out, group, height', width').

    >>> import torch
    >>> from coattend.groups import dihedral
    >>> group_conv2d(torch.zeros(2, 10, 8, 14, 14), torch.zeros(20, 10, 8, 3, 3), None, dihedral(4), padding=1).shape
    torch.Size([2, 20, 8, 14, 14])
    """
    name, arguments = "group_conv2d", (stride, padding, dilation, groups, padding_mode)
    if tables is None:
        k = check_parameters(name, weight, bias, group, 5, filters, kernel_size)
        check_input(name, x, weight, checked_geometry(name, k, *arguments), group.order)
        poses = checked_relative(name, group, relative, weight.shape[2])
        tables = _group_tables(weight, k, group, poses, groups, filters)
    geometry = checked_geometry(name, tables.turns.kernel_size, *arguments)
    if reads_own_pose(geometry, relative):
        return convolve_poses(x, turn_filters(weight[:, :, 0], tables.turns)[:, :, 0], bias, geometry.stride, groups)
    if bank is None:
        bank = table_filters(weight, tables, geometry.groups, channels_last=prefers_channels_last(x))
    if tables.blocks is not None:
        return convolve_blocks(x, bank, bias, geometry, tables.blocks)
    return convolve_planes(x, bank, repeat_bias(bias, group.order), geometry, group.order)


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
    filters: Filters = "free",
    attention: Tensor | Attend | None = None,
    *,
    kernel_size: int | None = None,
    turns: Turns | None = None,
    bank: Tensor | None = None,
) -> Tensor:
    """Correlate each pose of a map with the filter in that pose and sum the poses.

    ``y[o] = sum_h A( sum_i x[i, h] * (h.weight[o, i]) ) + bias[o]``

    Args:
        x: a map (batch, in, group, height, width).
        weight: (out, in / groups, k, k), or (out, in / groups, coefficients) of steerable filters.
        bias: (out,) or None.
        group: the group of the third axis.
        stride, padding, dilation, groups, padding_mode, filters, kernel_size: see :func:`lifting_conv2d`.
        attention: A, by the weights of :func:`co_attention` for the output channels, or a function from maps to maps;
            None for none.
        turns: the tables of :func:`coattend.functional.tables.turn_tables`, if they are at hand.
        bank: see :func:`lifting_conv2d`.

    Returns an image (batch, out, height', width').
    """
    name, arguments = "projection_conv2d", (stride, padding, dilation, groups, padding_mode)
    if turns is None:
        k = check_parameters(name, weight, bias, group, 4, filters, kernel_size)
        check_input(name, x, weight, checked_geometry(name, k, *arguments), group.order)
        turns = turn_tables(group, k, filters).to(weight.device)
    geometry = checked_geometry(name, turns.kernel_size, *arguments)
    if bank is None:
        bank = (projection_filters if attention is None else pose_filters)(weight, turns)
    if attention is None:
        return convolve_planes(x, bank, bias, geometry)
    # One convolution per pose, run as channel groups of a single one: hence the pose-major order.
    pose_major = geometry._replace(groups=group.order * geometry.groups)
    planes = convolve_planes(poses_first(x), bank, None, pose_major)
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
    filters: Filters = "free",
    relative: Iterable[int] | None = None,
    *,
    kernel_size: int | None = None,
    tables: SliceTables | None = None,
    bank: Tensor | None = None,
    in_parts: bool = True,
) -> Tensor:
    """Convolve on the group and attend to the responses of each filter slice on its own, before their sum.

    ``y[o, g] = sum_t A_{o,t}( { sum_i x[i, g' t] * (g'.weight[o, i, t]) }_{g'} )(g) + bias[o]``

    Args:
        x: a map (batch, in, group, height, width).
        weight: (out, in / groups, group, k, k), or one slice for each of ``relative``; (out, in / groups, group,
            coefficients) of steerable filters.
        bias: (out,) or None.
        group: the group of the third axis.
        attention: A, by the weights of :func:`co_attention` for out * slices channels, channel ``o * slices + t``, or a
            function with the arguments of :meth:`coattend.nn.PoseAttention.attend_slices`.
        stride, padding, dilation, groups, padding_mode, filters, kernel_size: see :func:`lifting_conv2d`.
        relative: see :func:`group_conv2d`.
        tables: the tables of :func:`coattend.functional.tables.slice_tables`, if they are at hand.
        bank: see :func:`lifting_conv2d`.
        in_parts: whether a large batch may be convolved and attended to in parts.

    Returns a map (batch, out, group, height', width').
    """
    name, arguments = "slice_attentive_conv2d", (stride, padding, dilation, groups, padding_mode)
    if tables is None:
        k = check_parameters(name, weight, bias, group, 5, filters, kernel_size)
        check_input(name, x, weight, checked_geometry(name, k, *arguments), group.order)
        poses = checked_relative(name, group, relative, weight.shape[2])
        turns, indices, rows = slice_tables(group, k, poses, len(weight), filters)
        tables = SliceTables(turns.to(weight.device), indices.to(weight.device), rows)
    geometry = checked_geometry(name, tables.turns.kernel_size, *arguments)
    slices = len(tables.rows) // group.order
    bank = slice_filters(weight, tables.turns, tables.poses) if bank is None else bank
    if not callable(attention):
        matrices = attention_matrices(name, attention, len(weight) * slices, group)
        if in_parts and slices_stay_in_cache(x, bank, matrices, slices, geometry):
            return add_bias(convolve_slices(x, bank, matrices, tables.rows, geometry.padding), bias)
        attention = lambda planes, rows, step: attend_slices(planes, matrices, rows, step)  # noqa: E731
    by_pose = geometry._replace(groups=group.order * geometry.groups)
    pixels = geometry.output_size(x.shape[-2]) * geometry.output_size(x.shape[-1])
    most = RESPONSE_BYTES if in_parts else None
    attended = [
        attention(convolve_planes(part, bank, None, by_pose), tables.rows, slices)
        for part in batch_parts(poses_first(x), len(bank) * pixels * x.element_size(), most)
    ]
    return add_bias(joined(attended), bias)


def _group_tables(
    weight: Tensor, k: int, group: FiniteGroup, relative: tuple[int, ...], groups: int, filters: Filters
) -> GroupTables:
    out_channels, in_channels = weight.shape[:2]
    tables = group_tables(group, k, relative, in_channels * groups, out_channels, groups, filters)
    blocks = tables.blocks
    if blocks is not None and blocks_are_faster(blocks.layout, in_channels, out_channels // groups, k):
        blocks = BlockTables(blocks.layout, *(table.to(weight.device) for table in blocks[1:]))
    else:
        blocks = None
    return GroupTables(tables.turns.to(weight.device), tables.relative.to(weight.device), blocks)
