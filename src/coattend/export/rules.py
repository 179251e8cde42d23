"""How each layer freezes: one function per class, found by the layer's type."""

from __future__ import annotations

import copy
import operator
from dataclasses import replace
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from coattend.export.attention_rules import attended, attended_slices, scale_filters
from coattend.export.graph import Builder, Value
from coattend.functional import group_filters, turn_filters
from coattend.nn import (
    GroupBatchNorm2d,
    GroupConv2d,
    GroupDropout2d,
    GroupGroupNorm2d,
    GroupInstanceNorm2d,
    GroupLayerNorm2d,
    GroupPool,
    LiftingConv2d,
    PoseAttention,
    PoseConv2d,
    ProjectionConv2d,
    SliceCoAttentiveConv2d,
    SpatialAvgPool2d,
    SpatialMaxPool2d,
    SpatialUpsample2d,
)

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.Identity)
POINTWISE = (
    nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.LogSigmoid, nn.Tanh,
    nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Threshold, nn.Softshrink, nn.Hardshrink,
)  # fmt: skip


@singledispatch
def freeze_layer(layer: nn.Module, builder: Builder, name: str, value: Value) -> Value:
    """Add what a layer computes to the graph.

    A layer of torch stays as it is and sees the shapes it always saw. ``freeze_layer.register(MyLayer)`` adds a rule
    for a layer of your own: ``(layer, builder, name, value) -> Value``.
    """
    if not type(layer).__module__.startswith("torch.nn"):
        raise ValueError(
            f"freeze does not know how {type(layer).__name__} ({name}) freezes; add a rule with "
            "coattend.export.freeze_layer.register, or leave the layer out."
        )
    return Value(builder.module(name, _copied(layer), builder.original(value)))  # may be a view of its input


def rule_class(layer: type[nn.Module]) -> type | None:
    """The class whose rule serves a layer, None if there is only the general one."""
    rule = freeze_layer.dispatch(layer)
    return next(
        (known for known in layer.__mro__ if freeze_layer.registry.get(known) is rule and known is not object), None
    )


def _pointwise(layer: nn.Module, builder: Builder, name: str, value: Value) -> Value:
    return Value(builder.module(name, _copied(layer), value.node), value.poses)


def _removed(layer: nn.Module, builder: Builder, name: str, value: Value) -> Value:
    return value


for pointwise in POINTWISE:
    freeze_layer.register(pointwise, _pointwise)
for random_or_nothing in (*DROPOUTS, GroupDropout2d):
    freeze_layer.register(random_or_nothing, _removed)


@freeze_layer.register
def _(layer: nn.ReLU, builder: Builder, name: str, value: Value) -> Value:
    relu = nn.ReLU(inplace=value.owned or layer.inplace)
    return Value(builder.module(name, relu, value.node), value.poses, owned=value.owned or not layer.inplace)


@freeze_layer.register
def _(layer: nn.Conv2d, builder: Builder, name: str, value: Value) -> Value:
    conv = _copied(layer)
    return _foldable(conv, builder.module(name, conv, builder.original(value)), None)


@freeze_layer.register
def _(layer: LiftingConv2d, builder: Builder, name: str, value: Value) -> Value:
    filters = turn_filters(layer.weight, layer.turns).transpose(1, 2).flatten(0, 1)
    conv = _convolution(layer, filters, layer.bias_per_pose(), layer.groups)
    return _convolved(layer, builder, name, conv, builder.original(value), layer.group.order)


@freeze_layer.register
def _(layer: GroupConv2d, builder: Builder, name: str, value: Value) -> Value:
    order, planes = layer.group.order, builder.folded(value, layer.group.order)
    if not layer.in_blocks:
        filters = group_filters(layer.whole_weight(), layer.turns, layer.relative_table).flatten(2, 3).flatten(0, 1)
        conv = _convolution(layer, filters, layer.bias_per_pose(), layer.groups)
        return _convolved(layer, builder, name, conv, planes, order)
    # A restricted filter: blocks of poses are channel groups of one convolution, in an order of their own.
    bias, back = layer.bias_per_pose(), layer.output_planes.argsort()
    conv = _convolution(
        layer, layer.block_filters(), None if bias is None else bias[back], len(layer.blocks.outputs) * layer.groups
    )
    gathered = builder.call(torch.index_select, planes, 1, builder.tensor(f"{name}.inputs", layer.input_planes.clone()))
    blocks = builder.module(name, conv, gathered)
    sorted_planes = builder.tensor(f"{name}.outputs", layer.output_planes.clone())
    node = builder.call(torch.index_select, blocks, 1, sorted_planes)

    def absorb(scale: Tensor, shift: Tensor) -> fx.Node:
        scale_filters(conv, scale.repeat_interleave(order)[back], shift.repeat_interleave(order)[back])
        return node

    return builder.respond(name, Value(node, order, absorb, owned=True))


@freeze_layer.register
def _(layer: ProjectionConv2d, builder: Builder, name: str, value: Value) -> Value:
    order = layer.group.order
    planes = builder.folded(value, order)
    poses = turn_filters(layer.weight, layer.turns)
    if layer.attention is None:
        conv = _convolution(layer, poses.flatten(1, 2), layer.bias, layer.groups)
        return _convolved(layer, builder, name, conv, planes, None)
    conv = _convolution(layer, poses.permute(2, 0, 1, 3, 4).flatten(0, 1), None, order * layer.groups)
    pose_major = builder.module(name, conv, _pose_major(builder, planes, order))
    responses = builder.call(torch.transpose, builder.call(torch.unflatten, pose_major, 1, (order, -1)), 1, 2)
    inside = builder.respond(f"{name}.attention", Value(builder.call(torch.flatten, responses, 1, 2), order))
    masked = builder.original(attended(builder, f"{name}.attention", layer.attention, inside))
    return Value(_biased(layer, builder, name, builder.call(torch.sum, masked, 2), 1), owned=True)


@freeze_layer.register
def _(layer: SliceCoAttentiveConv2d, builder: Builder, name: str, value: Value) -> Value:
    order, kept = layer.group.order, len(layer.relative)
    conv = _convolution(layer, layer.slice_filters(), None, order * layer.groups)
    planes = builder.module(name, conv, _pose_major(builder, builder.folded(value, order), order))
    first = kept * torch.arange(layer.out_channels)
    index = (first[:, None] + torch.tensor(layer.rows)).unflatten(1, (kept, order))
    offset = layer.weight.new_zeros(layer.out_channels) if layer.bias is None else layer.bias.detach().clone()
    return attended_slices(builder, f"{name}.attention", layer.attention, conv, planes, index, offset)


@freeze_layer.register
def _(layer: PoseAttention, builder: Builder, name: str, value: Value) -> Value:
    return attended(builder, name, layer, builder.respond(name, value))


@freeze_layer.register(nn.BatchNorm2d)
@freeze_layer.register(nn.BatchNorm3d)
@freeze_layer.register(GroupBatchNorm2d)
def _(layer: _BatchNorm, builder: Builder, name: str, value: Value) -> Value:
    """Folded into the convolution before it where nothing else reads that, else a norm of all planes."""
    if layer.running_mean is None or layer.running_var is None:
        raise ValueError(
            f"freeze cannot fix the norm {name}: it has no running statistics and uses those of each batch; build it "
            "with track_running_stats=True."
        )
    node = None if value.absorb is None else value.absorb(*_scale_and_shift(layer))
    if node is not None:
        return Value(node, value.poses, conv=value.conv, owned=True)
    if value.poses is None:
        kind = nn.BatchNorm3d if isinstance(layer, GroupBatchNorm2d) else type(layer)
        return Value(builder.module(name, _batch_norm(kind, layer, 1), value.node), owned=True)
    norm = _batch_norm(nn.BatchNorm2d, layer, value.poses)
    return Value(builder.module(name, norm, value.node), value.poses, owned=True)


@freeze_layer.register
def _(layer: GroupInstanceNorm2d, builder: Builder, name: str, value: Value) -> Value:
    settings: dict[str, Any] = {key: getattr(layer, key) for key in ("eps", "affine", "track_running_stats")}
    norm = nn.InstanceNorm3d(layer.num_features, **settings)
    norm.load_state_dict(layer.state_dict())
    return Value(builder.module(name, norm.eval(), builder.original(value)), owned=True)


@freeze_layer.register
def _(layer: GroupGroupNorm2d, builder: Builder, name: str, value: Value) -> Value:
    norm = nn.GroupNorm(layer.num_groups, layer.num_channels, layer.eps, layer.affine)
    norm.load_state_dict(layer.state_dict())
    return Value(builder.module(name, norm, builder.original(value)), owned=True)


@freeze_layer.register
def _(layer: GroupLayerNorm2d, builder: Builder, name: str, value: Value) -> Value:
    x = builder.original(value)
    moments = builder.call(torch.var_mean, x, (1, 2), correction=0, keepdim=True)
    variance, mean = (builder.call(operator.getitem, moments, place) for place in (0, 1))
    centred = builder.call(torch.sub, x, mean)
    y = builder.call(torch.mul, centred, builder.call(torch.rsqrt, builder.call(torch.add, variance, layer.eps)))
    if layer.weight is not None and layer.bias is not None:
        weight, bias = (
            builder.tensor(f"{name}.{key}", parameter.detach().clone()[:, None, None, None])
            for key, parameter in (("weight", layer.weight), ("bias", layer.bias))
        )
        y = builder.call(torch.addcmul, bias, y, weight)
    return Value(y, owned=True)


@freeze_layer.register
def _(layer: SpatialMaxPool2d, builder: Builder, name: str, value: Value) -> Value:
    pool = nn.MaxPool2d(layer.kernel_size, layer.stride, layer.padding)
    if builder.eager and value.poses is not None:  # several times as fast, and convolutions prefer it as well
        by_pixel = builder.graph.call_method("contiguous", (value.node,), {"memory_format": torch.channels_last})
        value = replace(value, node=by_pixel)
    return _by_plane(pool, builder, name, value)


@freeze_layer.register
def _(layer: SpatialAvgPool2d, builder: Builder, name: str, value: Value) -> Value:
    return _by_plane(nn.AvgPool2d(layer.kernel_size, layer.stride, layer.padding), builder, name, value)


@freeze_layer.register
def _(layer: SpatialUpsample2d, builder: Builder, name: str, value: Value) -> Value:
    align_corners = None if layer.mode == "nearest" else False
    enlarged = nn.Upsample(scale_factor=layer.scale_factor, mode=layer.mode, align_corners=align_corners)
    return _by_plane(enlarged, builder, name, value)


@freeze_layer.register
def _(layer: GroupPool, builder: Builder, name: str, value: Value) -> Value:
    reduce: Any = {"max": torch.amax, "mean": torch.mean, "sum": torch.sum}[layer.reduce]
    by_pose = builder.original(value)
    if layer.over is None:
        return Value(builder.call(reduce, by_pose, 2), owned=True)
    cosets, size = layer.cosets.shape
    index = builder.tensor(f"{name}.cosets", layer.cosets.flatten())
    chosen = builder.call(torch.index_select, by_pose, 2, index)
    reduced = builder.call(reduce, builder.call(torch.unflatten, chosen, 2, (cosets, size)), 3)
    return Value(builder.call(torch.flatten, reduced, 1, 2), cosets, owned=True)


def _convolution(layer: PoseConv2d, filters: Tensor, bias: Tensor | None, groups: int) -> nn.Conv2d:
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
    conv.weight = nn.Parameter(filters.detach().contiguous(), requires_grad=False)
    if bias is not None:
        conv.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
    return conv


def _convolved(
    layer: PoseConv2d, builder: Builder, name: str, conv: nn.Conv2d, planes: fx.Node, poses: int | None
) -> Value:
    return builder.respond(name, _foldable(conv, builder.module(name, conv, planes), poses))


def _foldable(conv: nn.Conv2d, node: fx.Node, poses: int | None) -> Value:
    """What a convolution returns; a norm behind it goes into its filters."""

    def absorb(scale: Tensor, shift: Tensor) -> fx.Node:
        scale_filters(conv, scale.repeat_interleave(poses or 1), shift.repeat_interleave(poses or 1))
        return node

    return Value(node, poses, absorb, conv, owned=True)


def _pose_major(builder: Builder, planes: fx.Node, order: int) -> fx.Node:
    """Planes ordered by pose, then channel: one block of channels per pose for a grouped convolution."""
    return builder.call(torch.flatten, builder.call(torch.transpose, builder.unfolded(planes, order), 1, 2), 1, 2)


def _biased(layer: PoseConv2d, builder: Builder, name: str, node: fx.Node, poses: int) -> fx.Node:
    if layer.bias is None:
        return node
    bias = layer.bias.detach().repeat_interleave(poses)[:, None, None]
    return builder.call(torch.add, node, builder.tensor(f"{name}.offset", bias))


def _scale_and_shift(norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """The norm as ``scale * x + shift`` per channel, in float64."""
    assert norm.running_mean is not None and norm.running_var is not None  # noqa: PT018
    scale = torch.rsqrt(norm.running_var.double() + norm.eps)
    if norm.affine:
        scale = scale * norm.weight.double()
    shift = -norm.running_mean.double() * scale
    return scale.detach(), (shift + norm.bias.double() if norm.affine else shift).detach()


def _batch_norm(kind: type[_BatchNorm], layer: _BatchNorm, poses: int) -> nn.Module:
    norm = kind(layer.num_features * poses, layer.eps, affine=layer.affine)
    state = {key: t.repeat_interleave(poses) if t.ndim else t for key, t in layer.state_dict().items()}
    norm.to(next(t for t in state.values() if t.ndim)).load_state_dict(state)
    return norm.eval()


def _by_plane(module: nn.Module, builder: Builder, name: str, value: Value) -> Value:
    if value.poses is not None:
        return Value(builder.module(name, module, value.node), value.poses, owned=True)
    poses = builder.call(operator.getitem, builder.call(getattr, value.node, "shape"), 2)
    planes = builder.module(name, module, builder.call(torch.flatten, value.node, 1, 2))
    return Value(builder.call(torch.unflatten, planes, 1, (-1, poses)), owned=True)


def _copied(layer: nn.Module) -> Any:
    return copy.deepcopy(layer).requires_grad_(False)
