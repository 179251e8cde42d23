"""The transposed convolution on a group, the adjoint of :func:`coattend.functional.group_conv2d`."""

from __future__ import annotations

from collections.abc import Iterable

import torch.nn.functional as F
from torch import Tensor

from coattend.functional.checks import MAP, check_parameters, check_same_type, check_tensor, checked_relative
from coattend.functional.filter_bank import group_filters, turn_filters
from coattend.functional.geometry import Geometry, Size, checked_geometry, checked_size
from coattend.functional.layout import folded
from coattend.functional.planes import repeat_bias
from coattend.functional.tables import GroupTables, group_tables
from coattend.groups import Filters, FiniteGroup


def group_conv_transpose2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    group: FiniteGroup,
    stride: Size = 1,
    padding: Size | str = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
    filters: Filters = "free",
    relative: Iterable[int] | None = None,
    *,
    kernel_size: int | None = None,
    tables: GroupTables | None = None,
    bank: Tensor | None = None,
) -> Tensor:
    """Apply the adjoint of :func:`group_conv2d` with the same weight, stride, padding, dilation and groups.

    ``y[o, h](u) = sum_i sum_g sum_v x[i, g](v) (g.weight[i, o, g^-1 h])(u + padding - stride v) + bias[o]``, with
    ``<group_conv2d(y, W), x> = <y, group_conv_transpose2d(x, W)>`` for all maps x and y.

    Args:
        x: a map (batch, in, group, height, width).
        weight: (in, out / groups, group, k, k), which is the weight of the convolution from out to in channels, or one
            slice for each of ``relative``; (in, out / groups, group, coefficients) of steerable filters.
        bias: (out,) or None.
        group: the group of the third axis.
        stride, padding, dilation, groups, filters, kernel_size: see :func:`lifting_conv2d`.
        output_padding: how many rows and columns more the result has on one side. The adjoint needs them if the
            convolution leaves as many over; neither of the two commutes with the group then.
        relative: see :func:`group_conv2d`.
        tables: the tables of :func:`coattend.functional.tables.group_tables`, if they are at hand.
        bank: the turned filters, see :mod:`coattend.functional.filter_bank`, if they are at hand.

    Returns a map (batch, out, group, height', width').

    >>> import torch
    >>> from coattend.groups import dihedral
    >>> weight = torch.zeros(20, 10, 8, 2, 2)
    >>> group_conv_transpose2d(torch.zeros(2, 20, 8, 7, 7), weight, None, dihedral(4), stride=2).shape
    torch.Size([2, 10, 8, 14, 14])
    """
    name, arguments = "group_conv_transpose2d", (stride, padding, dilation, groups, "zeros")
    if tables is None:
        channel_groups = checked_geometry(name, 1, *arguments).groups
        k = check_parameters(name, weight, bias, group, 5, filters, kernel_size, transposed=channel_groups)
        geometry = checked_geometry(name, k, *arguments)
        _check_map(name, x, weight, geometry, group.order)
        check_enlarges(name, x, geometry, checked_output_padding(name, output_padding, geometry))
        poses = checked_relative(name, group, relative, weight.shape[2])
        turns, pairs, _ = group_tables(group, k, poses, len(weight), weight.shape[1] * groups, groups, filters)
        tables = GroupTables(turns.to(weight.device), pairs.to(weight.device), None)
    geometry = checked_geometry(name, tables.turns.kernel_size, *arguments)
    extra = checked_output_padding(name, output_padding, geometry)
    if relative is not None and tuple(relative) == (0,):
        return _transpose_poses(x, turn_filters(weight[:, :, 0], tables.turns), bias, geometry, extra)
    bank = group_filters(weight, tables.turns, tables.relative) if bank is None else bank
    planes = _transpose(folded(x), bank, repeat_bias(bias, group.order), geometry, extra, 1)
    return planes.unflatten(1, (-1, group.order))


def _transpose_poses(x: Tensor, bank: Tensor, bias: Tensor | None, geometry: Geometry, extra: int) -> Tensor:
    """Apply filters (in, out / groups, group, k, k) to each pose for itself: poses are channel groups."""
    order = x.shape[2]
    planes, biases = x.transpose(1, 2).flatten(1, 2), None if bias is None else bias.repeat(order)
    y = _transpose(planes, bank.movedim(2, 0).flatten(0, 1), biases, geometry, extra, order)
    return y.unflatten(1, (order, -1)).transpose(1, 2)


def _transpose(planes: Tensor, bank: Tensor, bias: Tensor | None, geometry: Geometry, extra: int, parts: int) -> Tensor:
    _, stride, padding, dilation, groups, _ = geometry
    return F.conv_transpose2d(planes, bank, bias, stride, padding, extra, parts * groups, dilation)


def checked_output_padding(owner: str, output_padding: Size, geometry: Geometry) -> int:
    """Return how many rows and columns more a transposed convolution returns on one side."""
    extra = checked_size(owner, "output_padding", output_padding, 0)
    if extra and extra >= max(geometry.stride, geometry.dilation):
        raise ValueError(
            f"{owner} expects output_padding below the stride or the dilation, {geometry.stride} and "
            f"{geometry.dilation}, got {extra}."
        )
    return extra


def check_enlarges(owner: str, x: Tensor, geometry: Geometry, output_padding: int) -> None:
    """Require a map of which the transposed convolution leaves at least one position."""
    height, width = (_output_size(geometry, output_padding, size) for size in x.shape[-2:])
    if min(height, width) < 1:
        raise ValueError(
            f"{owner} removes padding={geometry.padding} positions on every side, of {x.shape[-2]} x {x.shape[-1]} "
            f"none are left ({height} x {width}); pass larger maps or less padding."
        )


def _output_size(geometry: Geometry, output_padding: int, size: int) -> int:
    return (size - 1) * geometry.stride - 2 * geometry.padding + geometry.extent + output_padding


def _check_map(function: str, x: Tensor, weight: Tensor, geometry: Geometry, order: int) -> None:
    check_tensor(function, "x", x, MAP, 5)
    channels, groups = len(weight), geometry.groups
    if x.shape[1] != channels or channels % groups or x.shape[2] != order:
        raise ValueError(
            f"{function} expects {channels} channels, a multiple of groups={groups}, and {order} poses in x {MAP} for "
            f"a weight {tuple(weight.shape)}, got x {tuple(x.shape)}; let the weight have (in, out / groups, ...) "
            "filters."
        )
    check_same_type(function, x, weight)
