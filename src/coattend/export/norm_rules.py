"""How norms freeze: batch norms go into the constants before them, others become torch's own."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from coattend.export.graph import Fold, Value
from coattend.export.rules import freeze_layer, frozen_copy
from coattend.nn import GroupBatchNorm2d, GroupGroupNorm2d, GroupInstanceNorm2d, GroupLayerNorm2d

if TYPE_CHECKING:
    from coattend.export.graph import Builder


@freeze_layer.register(nn.BatchNorm2d)
@freeze_layer.register(nn.BatchNorm3d)
@freeze_layer.register(GroupBatchNorm2d)
def freeze_batch_norm(layer: _BatchNorm, builder: Builder, name: str, value: Value) -> Value:
    """Fold the norm into the convolution and attention before it if no other node reads those."""
    if layer.running_mean is None or layer.running_var is None:
        raise ValueError(
            f"freeze cannot fix the norm {name}: it has no running statistics and uses those of each batch; build it "
            "with track_running_stats=True."
        )
    scale, shift = _scale_and_shift(layer, layer.running_mean, layer.running_var)
    if value.fold is not None and value.fold.admits(scale):
        return _fold(builder, name, value, value.fold, scale, shift)
    if value.poses is None:
        kind = nn.BatchNorm3d if isinstance(layer, GroupBatchNorm2d) else type(layer)
        return Value(builder.module(name, _batch_norm(kind, layer, 1), value.node), owned=True)
    norm = _batch_norm(nn.BatchNorm2d, layer, value.poses)
    return Value(builder.module(name, norm, value.node), value.poses, owned=True)


@freeze_layer.register(GroupInstanceNorm2d)
def freeze_instance_norm(layer: GroupInstanceNorm2d, builder: Builder, name: str, value: Value) -> Value:
    """Normalize each channel over poses and positions."""
    settings: dict[str, Any] = {key: getattr(layer, key) for key in ("eps", "affine", "track_running_stats")}
    norm = nn.InstanceNorm3d(layer.num_features, **settings)
    norm.load_state_dict(layer.state_dict(), assign=True)
    norm = frozen_copy(norm)
    return Value(builder.module(name, norm.eval(), builder.original(value)), owned=True)


@freeze_layer.register(GroupGroupNorm2d)
def freeze_group_norm(layer: GroupGroupNorm2d, builder: Builder, name: str, value: Value) -> Value:
    """Normalize blocks of channels over poses and positions."""
    norm = nn.GroupNorm(layer.num_groups, layer.num_channels, layer.eps, layer.affine)
    norm.load_state_dict(layer.state_dict(), assign=True)
    norm = frozen_copy(norm)
    return Value(builder.module(name, norm, builder.original(value)), owned=True)


@freeze_layer.register(GroupLayerNorm2d)
def freeze_layer_norm(layer: GroupLayerNorm2d, builder: Builder, name: str, value: Value) -> Value:
    """Normalize each position over channels and poses."""
    x = builder.original(value)
    if builder.eager:
        return Value(_layer_norm(layer, builder, name, x), owned=True)
    moments = builder.call(torch.var_mean, x, (1, 2), correction=0, keepdim=True)
    variance, mean = (builder.call(operator.getitem, moments, number) for number in (0, 1))
    centred = builder.call(torch.sub, x, mean)
    y = builder.call(torch.mul, centred, builder.call(torch.rsqrt, builder.call(torch.add, variance, layer.eps)))
    if layer.weight is not None and layer.bias is not None:
        weight, bias = (
            builder.tensor(f"{name}.{key}", parameter.detach().clone()[:, None, None, None])
            for key, parameter in (("weight", layer.weight), ("bias", layer.bias))
        )
        y = builder.call(torch.addcmul, bias, y, weight)
    return Value(y, owned=True)


def _layer_norm(layer: GroupLayerNorm2d, builder: Builder, name: str, x: fx.Node) -> fx.Node:
    """Normalize by the operation of torch, which takes the last axes: those of a position in channels-last format."""
    by_position = builder.call(torch.permute, x, (0, 3, 4, 1, 2))
    planes = builder.call(operator.getitem, builder.call(getattr, by_position, "shape"), slice(3, None))
    scale_and_shift: list[fx.Node | None] = [None, None]
    if layer.weight is not None and layer.bias is not None:
        scale_and_shift = [
            builder.call(torch.broadcast_to, builder.tensor(f"{name}.{key}", t.detach().clone()[:, None]), planes)
            for key, t in (("weight", layer.weight), ("bias", layer.bias))
        ]
    y = builder.call(F.layer_norm, by_position, planes, *scale_and_shift, layer.eps)
    return builder.call(torch.permute, y, (0, 3, 4, 1, 2))


def _fold(builder: Builder, name: str, value: Value, fold: Fold, scale: Tensor, shift: Tensor) -> Value:
    remainder = fold.apply(scale, shift)
    folded = replace(value, fold=None if fold.matrices else fold, owned=True)
    if remainder is None:
        return folded
    offset = remainder.to(fold.conv.weight.dtype)
    if value.unit is not None:
        value.unit.offset = offset
        return folded
    planes = offset.repeat_interleave(value.poses or 1)[:, None, None]
    node = builder.inplace("add_", value.node, builder.tensor(f"{name}.shift", planes))
    return Value(node, value.poses, owned=True)


def _scale_and_shift(norm: _BatchNorm, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return the norm as ``scale * x + shift`` per channel, in float64."""
    scale = torch.rsqrt(variance.double() + norm.eps)
    if norm.affine:
        scale = scale * norm.weight.double()
    shift = -mean.double() * scale
    return scale.detach(), (shift + norm.bias.double() if norm.affine else shift).detach()


def _batch_norm(kind: type[_BatchNorm], layer: _BatchNorm, poses: int) -> nn.Module:
    norm = kind(layer.num_features * poses, layer.eps, affine=layer.affine)
    state = {key: t.repeat_interleave(poses) if t.ndim else t for key, t in layer.state_dict().items()}
    norm.to(next(t for t in state.values() if t.ndim)).load_state_dict(state)
    return norm.eval()
