"""How convolutions freeze: filters are expanded once, into plain convolutions of planes."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx, nn

from coattend.export.attention_rules import co_attention_by_slice, contiguous_planes, slice_of_plane
from coattend.export.fused import slice_index
from coattend.export.graph import Fold, Value
from coattend.export.rules import apply_rule, freeze_layer, frozen_copy
from coattend.functional.filter_bank import turn_filters
from coattend.functional.planes import reads_own_pose
from coattend.nn import (
    CoAttention,
    GroupConv2d,
    GroupConvTranspose2d,
    LiftingConv2d,
    OrientationField,
    PoseConv2d,
    ProjectionConv2d,
    SliceCoAttentiveConv2d,
)

if TYPE_CHECKING:
    from coattend.export.graph import Builder


@freeze_layer.register(nn.Conv2d)
def freeze_conv(layer: nn.Conv2d, builder: Builder, name: str, value: Value) -> Value:
    """Copy a plain convolution; a norm after it can be folded into the copy, unless a subclass convolves otherwise."""
    conv = frozen_copy(layer)
    node = builder.module(name, conv, builder.original(value))
    return conv_value(conv, node, None) if _convolves_plainly(conv) else Value(node, owned=True)


def _convolves_plainly(conv: nn.Conv2d) -> bool:
    return type(conv)._conv_forward is nn.Conv2d._conv_forward


@freeze_layer.register(LiftingConv2d)
def freeze_lifting_conv(layer: LiftingConv2d, builder: Builder, name: str, value: Value) -> Value:
    """Convolve the image with the filter in every pose."""
    conv = _plain_conv(layer)
    node = builder.module(name, conv, builder.original(value))
    return builder.respond(name, conv_value(conv, node, layer.group.order))


@freeze_layer.register(GroupConv2d)
def freeze_group_conv(layer: GroupConv2d, builder: Builder, name: str, value: Value) -> Value:
    """Convolve the planes with the whole bank of filters, or, for a restricted filter, with blocks of it."""
    order, planes = layer.group.order, builder.folded(value, layer.group.order)
    if reads_own_pose(layer.geometry, layer.relative):
        return builder.respond(name, _conv_of_each_pose(layer, builder, name, planes))
    conv = _plain_conv(layer)
    if not layer.in_blocks:
        return builder.respond(name, conv_value(conv, builder.module(name, conv, planes), order))
    # Blocks of poses are channel groups of one convolution, in an order of their own.
    back = layer.output_planes.argsort()
    inputs, outputs = (
        builder.tensor(f"{name}.{key}", planes.clone())
        for key, planes in (("inputs", layer.input_planes), ("outputs", layer.output_planes))
    )
    blocks = builder.module(name, conv, builder.call(torch.index_select, planes, 1, inputs))
    node = builder.call(torch.index_select, blocks, 1, outputs)
    fold = Fold(conv, torch.arange(layer.out_channels).repeat_interleave(order)[back])
    return builder.respond(name, Value(node, order, fold, owned=True))


def _conv_of_each_pose(layer: GroupConv2d, builder: Builder, name: str, planes: fx.Node) -> Value:
    """Apply a 1x1 convolution that reads each pose for itself to an image of the rows of all poses."""
    order = layer.group.order
    conv = nn.Conv2d(layer.in_channels, layer.out_channels, 1, groups=layer.groups, bias=layer.bias is not None)
    bank = turn_filters(layer.weight.detach()[:, :, 0], layer._turns())  # in one pose: other taps than one have none
    conv.weight = nn.Parameter(bank[:, :, 0].contiguous(), requires_grad=False)
    if layer.bias is not None:
        conv.bias = nn.Parameter(layer.bias.detach().clone(), requires_grad=False)
    maps = builder.unfolded(planes, order)
    if layer.stride > 1:
        step = slice(None, None, layer.stride)
        maps = builder.call(operator.getitem, maps, (..., step, step))
    rows = builder.module(name, conv, builder.call(torch.flatten, maps, 2, 3))
    folded = builder.call(torch.flatten, builder.call(torch.unflatten, rows, 2, (order, -1)), 1, 2)
    return Value(folded, order, Fold(conv, torch.arange(layer.out_channels)), owned=True)


@freeze_layer.register(GroupConvTranspose2d)
def freeze_transposed_conv(layer: GroupConvTranspose2d, builder: Builder, name: str, value: Value) -> Value:
    """Apply the transposed convolution to the planes, with the whole bank of filters."""
    filters, bias = layer.filters(), layer.expanded_bias()
    conv = nn.ConvTranspose2d(
        len(filters),
        filters.shape[1] * layer.groups,
        layer.kernel_size,
        layer.stride,
        layer.padding,
        layer.output_padding,
        layer.groups,
        bias is not None,
        layer.dilation,
        device="meta",
    )
    _set_filters(conv, filters, bias)
    planes = builder.folded(value, layer.group.order)
    return builder.respond(name, conv_value(conv, builder.module(name, conv, planes), layer.group.order))


@freeze_layer.register(OrientationField)
def freeze_orientation_field(layer: OrientationField, builder: Builder, name: str, value: Value) -> Value:
    """Read the fields from the planes by a 1x1 convolution."""
    filters = layer.filters()
    conv = nn.Conv2d(filters.shape[1], len(filters), 1, bias=False, device="meta")
    _set_filters(conv, filters, None)
    return conv_value(conv, builder.module(name, conv, builder.folded(value, layer.group.order)), None)


@freeze_layer.register(ProjectionConv2d)
def freeze_projection_conv(layer: ProjectionConv2d, builder: Builder, name: str, value: Value) -> Value:
    """Convolve each pose with the filter in that pose and sum, perhaps with attention before the sum."""
    order = layer.group.order
    planes = builder.folded(value, order)
    conv = _plain_conv(layer)
    if layer.attention is None:
        return builder.respond(name, conv_value(conv, builder.module(name, conv, planes), None))
    by_pose = builder.module(name, conv, pose_major(builder, planes, order))
    responses = builder.call(torch.transpose, builder.call(torch.unflatten, by_pose, 1, (order, -1)), 1, 2)
    inside = Value(builder.call(torch.flatten, responses, 1, 2), order)
    attended = builder.original(apply_rule(layer.attention, builder, f"{name}.attention", inside))
    summed = builder.call(torch.sum, attended, 2)
    if layer.bias is not None:
        offset = builder.tensor(f"{name}.offset", layer.bias.detach().clone()[:, None, None])
        summed = builder.call(torch.add, summed, offset)
    return Value(summed, owned=True)


@freeze_layer.register(SliceCoAttentiveConv2d)
def freeze_slice_conv(layer: SliceCoAttentiveConv2d, builder: Builder, name: str, value: Value) -> Value:
    """Convolve each input pose with its filter slices, attend to each slice, and sum the slices."""
    order, conv = layer.group.order, _plain_conv(layer)
    attention: nn.Module = layer.attention
    if builder.eager and not builder.masks and isinstance(attention, CoAttention) and _is_plain(attention):
        return co_attention_by_slice(builder.named(name), attention.matrix(), conv, value, layer.rows, layer.bias)
    planes = builder.module(name, conv, pose_major(builder, builder.folded(value, order), order))
    bias = layer.weight.new_zeros(layer.out_channels) if layer.bias is None else layer.bias
    offset = bias.detach().repeat_interleave(order)[:, None, None]
    index = slice_index(conv, layer.rows, order)
    return _attend_to_slices(builder.named(f"{name}.attention"), attention, conv, planes, index, offset)


def _is_plain(attention: CoAttention) -> bool:
    """Return whether the layer computes co-attention, and not what a subclass or an assignment replaced it with."""
    return type(attention).freeze is CoAttention.freeze and not attention.is_patched


def _attend_to_slices(
    builder: Builder, attention: nn.Module, conv: nn.Conv2d, planes: fx.Node, index: Tensor, offset: Tensor
) -> Value:
    """Gather all filter slices as channels of one map, attend to it, and sum the slices and the offset.

    - planes: the output of ``conv``
    - index: the plane of each (channel, slice, pose)
    - offset: (channels * group, 1, 1), added to the sum
    """
    _, slices, order = index.shape
    selected = builder.tensor(f"{builder.name}.planes", index.flatten().to(conv.weight.device))
    responses = builder.call(torch.index_select, contiguous_planes(builder, planes), 1, selected)
    gathered = Value(responses, order, Fold(conv, slice_of_plane(index)), owned=True)
    attended = apply_rule(attention, builder, builder.name, gathered)
    by_slice = builder.call(torch.unflatten, builder.folded(attended, order), 1, (-1, slices, order))
    summed = builder.call(torch.flatten, builder.call(torch.sum, by_slice, 2), 1, 2)
    total = builder.call(torch.add, summed, builder.tensor(f"{builder.name}.offset", offset))
    fold = None
    if attended.fold is not None and attended.fold.matrices:
        constants = tuple((constant, numbers // slices) for constant, numbers in attended.fold.matrices)
        fold = Fold(conv, attended.fold.channels // slices, constants, offset)
    return Value(total, order, fold, owned=True)


def _plain_conv(layer: PoseConv2d) -> nn.Conv2d:
    """Return the convolution of planes that a layer computes."""
    filters, bias, groups = layer.filters(), layer.expanded_bias(), layer.filter_groups
    planes, per_group = filters.shape[:2]
    conv = nn.Conv2d(
        per_group * groups,
        planes,
        layer.kernel_size,
        layer.stride,
        layer.padding,
        layer.dilation,
        groups,
        bias=bias is not None,
        padding_mode=layer.padding_mode,  # type: ignore[arg-type]
        device="meta",
    )
    _set_filters(conv, filters, bias)
    return conv


def _set_filters(conv: nn.Conv2d | nn.ConvTranspose2d, filters: Tensor, bias: Tensor | None) -> None:
    conv.weight = nn.Parameter(filters.detach().contiguous(), requires_grad=False)
    if bias is not None:
        conv.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)


def conv_value(conv: nn.Conv2d | nn.ConvTranspose2d, node: fx.Node, poses: int | None) -> Value:
    """Return the output of a convolution, into which a norm after it can be folded."""
    channels = torch.arange(conv.out_channels // (poses or 1)).repeat_interleave(poses or 1)
    return Value(node, poses, Fold(conv, channels), owned=True)


def pose_major(builder: Builder, planes: fx.Node, order: int) -> fx.Node:
    """Return planes ordered by pose, then channel: one block of channels per pose for a grouped convolution."""
    return builder.call(torch.flatten, builder.call(torch.transpose, builder.unfolded(planes, order), 1, 2), 1, 2)
