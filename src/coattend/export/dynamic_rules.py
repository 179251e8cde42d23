"""How convolutions with generated filters freeze: 1x1 convolutions, then a unit that generates and applies filters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from coattend.export.conv_rules import conv_value
from coattend.export.fused import FrozenGeneratedFilters
from coattend.export.graph import Value
from coattend.export.rules import apply_rule, freeze_layer
from coattend.nn import DynamicGroupConv2d

if TYPE_CHECKING:
    from coattend.export.graph import Builder


@freeze_layer.register(DynamicGroupConv2d)
def freeze_dynamic_conv(layer: DynamicGroupConv2d, builder: Builder, name: str, value: Value) -> Value:
    """Generate filters from the context and apply them to the value; constant ones are a convolution of each plane."""
    order = layer.group.order
    shared = value.shared()
    values = apply_rule(layer.value, builder, f"{name}.value", shared)
    if not layer.generated:
        conv = _depthwise_conv(layer)
        node = builder.module(f"{name}.filters", conv, builder.folded(values, order))
        return builder.respond(name, conv_value(conv, node, order))
    norm = layer.context_norm()
    context = shared
    for part in ("context",) if norm else ("context", "norm", "act"):
        context = apply_rule(getattr(layer, part), builder, f"{name}.{part}", context)
    planes = (builder.folded(part, order) for part in (values, context))
    node = builder.module(f"attention.{name}", FrozenGeneratedFilters(layer.bank(), norm), *planes)
    return builder.respond(name, Value(node, order, owned=True))


def _depthwise_conv(layer: DynamicGroupConv2d) -> nn.Conv2d:
    """Return the convolution of every plane with the constant filter of its slice and pose."""
    bank = layer.bank().detach()[-1].transpose(1, 2).unflatten(2, (layer.kernel_size, layer.kernel_size))  # s g k k
    filters = bank.repeat_interleave(layer.out_channels // layer.slices, dim=0).flatten(0, 1)
    planes = len(filters)
    conv = nn.Conv2d(
        planes, planes, layer.kernel_size, padding=layer.kernel_size // 2, groups=planes, bias=False, device="meta"
    )
    conv.weight = nn.Parameter(filters.unsqueeze(1).contiguous(), requires_grad=False)
    return conv
