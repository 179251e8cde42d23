"""How layers freeze: one function per class, chosen by the type of the layer; see also conv_rules and norm_rules."""

from __future__ import annotations

import copy
import operator
from dataclasses import replace
from functools import singledispatch
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from coattend.data import Preprocessing
from coattend.export.graph import Value
from coattend.export.trace import add_operations
from coattend.models.turned import TurnedCopies
from coattend.models.unet import RequireMultiple
from coattend.nn import (
    AttentionLayer,
    GroupDropout2d,
    GroupPool,
    RestrictGroup,
    SpatialAvgPool2d,
    SpatialMaxPool2d,
    SpatialUpsample2d,
)
from coattend.nn.hooks import has_forward_hooks

if TYPE_CHECKING:
    from coattend.export.graph import Builder

DROPOUTS = (
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout, GroupDropout2d,
)  # fmt: skip
POINTWISE = (
    nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.LogSigmoid, nn.Tanh,
    nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Threshold, nn.Softshrink, nn.Hardshrink,
)  # fmt: skip


@singledispatch
def freeze_layer(layer: nn.Module, builder: Builder, name: str, value: Value) -> Value:
    """Add what a layer computes to the graph.

    A layer of torch stays as it is and receives the shapes that it has in the original network.
    ``freeze_layer.register(MyLayer)`` adds a rule for a layer of your own: ``(layer, builder, name, value) -> Value``.
    """
    if not type(layer).__module__.startswith("torch.nn"):
        raise ValueError(
            f"freeze does not know how {type(layer).__name__} ({name}) freezes; add a rule with "
            "coattend.export.freeze_layer.register, or leave the layer out."
        )
    return Value(builder.module(name, frozen_copy(layer), builder.original(value)))  # may be a view of its input


def rule_class(layer: type[nn.Module]) -> type[nn.Module] | None:
    """Return the class whose rule applies to a layer, None for the general rule."""
    rule = freeze_layer.dispatch(layer)
    classes = (known for known in layer.__mro__ if issubclass(known, nn.Module))
    return next((known for known in classes if freeze_layer.registry.get(known) is rule), None)


def apply_rule(layer: nn.Module, builder: Builder, name: str, value: Value) -> Value:
    """Add what a layer computes to the graph, unless it computes something else than its rule.

    The general rule copies a layer with all that belongs to it.
    """
    known = rule_class(type(layer))
    if known is not None:
        require_own_forward(layer, name)
    if known is not None and not issubclass(known, AttentionLayer) and type(layer).forward is not known.forward:
        raise ValueError(
            f"freeze does not know what {type(layer).__name__} ({name}) does: it is a {known.__name__} with its own "
            "forward; add a rule with coattend.export.freeze_layer.register."
        )
    return freeze_layer(layer, builder, name, value)


def require_own_forward(layer: nn.Module, name: str) -> None:
    """Refuse a module whose result is changed by a hook, or by a ``forward`` that was assigned to it."""
    patched = "forward" in vars(layer) and not isinstance(layer, AttentionLayer)
    if has_forward_hooks(layer) or patched:
        raise ValueError(
            f"freeze expects layers without hooks and with the forward of their class, got {type(layer).__name__} "
            f"({name or 'the network itself'}) with {'a forward of its own' if patched else 'a hook'}; remove it, or "
            "make what it computes permanent: torch.nn.utils.remove_weight_norm, torch.nn.utils.prune.remove."
        )


def frozen_copy(layer: nn.Module) -> Any:
    """Return a copy of a layer without gradients, with plain parameters instead of computed ones."""
    try:
        copied = copy.deepcopy(layer)
    except RuntimeError as error:  # of torch: a tensor with a history
        raise ValueError(
            f"freeze cannot copy {type(layer).__name__}, one of whose weights is computed ({error}); make it permanent "
            "first: torch.nn.utils.remove_weight_norm, torch.nn.utils.prune.remove."
        ) from error
    for module in copied.modules():
        _make_permanent(module)
    return copied.requires_grad_(False)


def _make_permanent(module: nn.Module) -> None:
    """Replace parametrized parameters by plain ones, in a copy."""
    computed = getattr(module, "parametrizations", None)
    if isinstance(computed, nn.ModuleDict):
        # The class of a parametrized module is its own, but a copy shares it, and what is removed is removed from it.
        shared = type(module)
        own = {name: value for name, value in vars(shared).items() if name not in ("__dict__", "__weakref__")}
        module.__class__ = type(shared.__name__, shared.__bases__, own)
        for name in [*computed]:
            parametrize.remove_parametrizations(module, name)
        module._load_state_dict_pre_hooks.clear()  # for states of computed parameters; torch.save cannot write them


def freeze_pointwise(layer: nn.Module, builder: Builder, name: str, value: Value) -> Value:
    """Apply a layer that treats all elements alike to a folded map."""
    return Value(builder.module(name, frozen_copy(layer), value.node), value.poses)


def remove_layer(layer: nn.Module, builder: Builder, name: str, value: Value) -> Value:
    """Leave out a layer that does nothing in evaluation mode."""
    return value


for pointwise in POINTWISE:
    freeze_layer.register(pointwise, freeze_pointwise)
for idle in (*DROPOUTS, nn.Identity, RequireMultiple):
    freeze_layer.register(idle, remove_layer)


@freeze_layer.register(nn.ReLU)
def freeze_relu(layer: nn.ReLU, builder: Builder, name: str, value: Value) -> Value:
    """Let the unit before it apply it, or overwrite the input where no other node reads it."""
    if value.unit is not None:
        value.unit.relu = True
        return replace(value, fold=None, unit=None)
    relu = nn.ReLU(inplace=value.owned or layer.inplace)
    return Value(builder.module(name, relu, value.node), value.poses, owned=value.owned or not layer.inplace)


@freeze_layer.register(Preprocessing)
@freeze_layer.register(TurnedCopies)
def freeze_for_one_size(layer: Preprocessing | TurnedCopies, builder: Builder, name: str, value: Value) -> Value:
    """Trace what depends on the size: steps that divide by the number of pixels, rotations about the centre."""
    if builder.image_shape is None:
        raise ValueError(
            f"freeze needs the shape of the images for {type(layer).__name__} ({name}); freeze a "
            "coattend.models.Classifier, which knows it, or export a file with size=."
        )
    pixels = builder.original(value)
    if builder.eager:
        builder.require_size(pixels, builder.image_shape)
    example = torch.zeros(2, *builder.image_shape, dtype=torch.float32)
    return Value(add_operations(builder.named(name), layer, pixels, example, free_axes=(0,)))


@freeze_layer.register(AttentionLayer)
def freeze_attention(layer: AttentionLayer, builder: Builder, name: str, value: Value) -> Value:
    """Apply the layer's own rule, or trace it if its computation was replaced."""
    own, inside = builder.named(name), builder.respond(name, value)
    if layer.is_patched:
        return own.traced(layer, inside)
    frozen: Value = layer.freeze(own, inside)
    return frozen


@freeze_layer.register(SpatialMaxPool2d)
def freeze_max_pool(layer: SpatialMaxPool2d, builder: Builder, name: str, value: Value) -> Value:
    """Pool the planes, on CPUs in channels-last memory: several times as fast, and convolutions prefer it too."""
    pool = nn.MaxPool2d(layer.kernel_size, layer.stride, layer.padding)
    if builder.eager and value.poses is not None:
        by_pixel = builder.graph.call_method("contiguous", (value.node,), {"memory_format": torch.channels_last})
        value = replace(value, node=by_pixel)
    return _apply_to_planes(pool, builder, name, value)


@freeze_layer.register(SpatialAvgPool2d)
def freeze_avg_pool(layer: SpatialAvgPool2d, builder: Builder, name: str, value: Value) -> Value:
    """Pool the planes."""
    pool = nn.AvgPool2d(layer.kernel_size, layer.stride, layer.padding)
    return _apply_to_planes(pool, builder, name, value)


@freeze_layer.register(SpatialUpsample2d)
def freeze_upsample(layer: SpatialUpsample2d, builder: Builder, name: str, value: Value) -> Value:
    """Enlarge the planes."""
    align_corners = None if layer.mode == "nearest" else False
    upsample = nn.Upsample(scale_factor=layer.scale_factor, mode=layer.mode, align_corners=align_corners)
    return _apply_to_planes(upsample, builder, name, value)


@freeze_layer.register(GroupPool)
def freeze_group_pool(layer: GroupPool, builder: Builder, name: str, value: Value) -> Value:
    """Reduce the poses of the group, or of each coset."""
    reduce: Any = {"max": torch.amax, "mean": torch.mean, "sum": torch.sum}[layer.reduce]
    by_pose = builder.original(value)
    if layer.over is None:
        return Value(builder.call(reduce, by_pose, 2), owned=True)
    cosets, size = layer.cosets.shape
    index = builder.tensor(f"{name}.cosets", layer.cosets.flatten())
    members = builder.call(torch.unflatten, builder.call(torch.index_select, by_pose, 2, index), 2, (cosets, size))
    return Value(builder.call(torch.flatten, builder.call(reduce, members, 3), 1, 2), cosets, owned=True)


@freeze_layer.register(RestrictGroup)
def freeze_restriction(layer: RestrictGroup, builder: Builder, name: str, value: Value) -> Value:
    """Sort the planes; where they are in order already, planes of channels of the group are those of the subgroup."""
    order = layer.group.order
    if torch.equal(layer.planes, torch.arange(order, device=layer.planes.device)):
        return Value(builder.folded(value, order), layer.to_group.order, owned=value.owned)
    index = builder.tensor(f"{name}.planes", layer.planes.clone())
    sorted_planes = builder.call(torch.index_select, builder.original(value), 2, index)
    return Value(builder.call(torch.flatten, sorted_planes, 1, 2), layer.to_group.order, owned=True)


def _apply_to_planes(module: nn.Module, builder: Builder, name: str, value: Value) -> Value:
    if value.poses is not None:
        return Value(builder.module(name, module, value.node), value.poses, owned=True)
    poses = builder.call(operator.getitem, builder.call(getattr, value.node, "shape"), 2)
    planes = builder.module(name, module, builder.call(torch.flatten, value.node, 1, 2))
    return Value(builder.call(torch.unflatten, planes, 1, (-1, poses)), owned=True)
