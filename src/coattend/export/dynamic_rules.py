"""How convolutions with generated filters freeze: 1x1 convolutions, then one product per offset of the filter."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import fx, nn

from coattend.export.conv_rules import conv_value, pose_major
from coattend.export.graph import Value
from coattend.export.rules import apply_rule, freeze_layer
from coattend.nn import DynamicGroupConv2d

if TYPE_CHECKING:
    from coattend.export.graph import Builder


@freeze_layer.register(DynamicGroupConv2d)
def freeze_dynamic_conv(layer: DynamicGroupConv2d, builder: Builder, name: str, value: Value) -> Value:
    """Generate the filters of all poses by one convolution, and sum over their offsets."""
    order = layer.group.order
    shared = value.shared()
    values = apply_rule(layer.value, builder, f"{name}.value", shared)
    if not layer.generated:
        conv = _depthwise_conv(layer)
        node = builder.module(f"{name}.filters", conv, builder.folded(values, order))
        return builder.respond(name, conv_value(conv, node, order))
    context = shared
    for part in ("context", "norm", "act"):
        context = apply_rule(getattr(layer, part), builder, f"{name}.{part}", context)
    by_pose = pose_major(builder, builder.folded(context, order), order)
    filters = builder.module(f"{name}.filters", _generating_conv(layer), by_pose)  # b (g s d) h w
    kappa = builder.call(torch.unflatten, filters, 1, (order, layer.slices, 1, -1))
    y = _summed(builder, layer, kappa, builder.original(values))
    return builder.respond(name, Value(builder.call(torch.flatten, y, 1, 3), order, owned=True))


def _summed(builder: Builder, layer: DynamicGroupConv2d, kappa: fx.Node, values: fx.Node) -> fx.Node:
    """Return ``sum_d kappa[g, s, d] v[s, c, g]`` as b s c g h w, given kappa (b g s 1 d h w) and v (b c g h w)."""
    k, reach = layer.kernel_size, layer.kernel_size // 2
    padded = builder.call(F.pad, values, (reach,) * 4)
    padded = builder.call(torch.unflatten, padded, 1, (layer.slices, -1))
    kappa = builder.call(torch.permute, kappa, (0, 2, 3, 4, 1, 5, 6))  # b s 1 d g h w
    total: fx.Node | None = None
    for offset in range(k * k):
        row, column = divmod(offset, k)
        window = (..., _part(row, k), _part(column, k))
        term = builder.call(
            torch.mul,
            builder.call(torch.select, kappa, 3, offset),
            builder.call(operator.getitem, padded, window),
        )
        total = term if total is None else builder.inplace("add_", total, term)
    assert total is not None
    return total


def _part(start: int, kernel_size: int) -> slice:
    """Return the part of a padded axis that a tap of the filter reads; its size need not be known."""
    return slice(start, start - kernel_size + 1 or None)


def _generating_conv(layer: DynamicGroupConv2d) -> nn.Conv2d:
    """Return the convolution from the hidden channels of each pose to its filters: (g m) -> (g s d)."""
    bank = layer.bank().detach().flatten(1, 2).permute(2, 1, 0).flatten(0, 1)  # (g s d) (m + 1)
    order = layer.group.order
    conv = nn.Conv2d(layer.hidden * order, len(bank), 1, groups=order, device="meta")
    conv.weight = nn.Parameter(bank[:, :-1, None, None].contiguous(), requires_grad=False)
    conv.bias = nn.Parameter(bank[:, -1].clone(), requires_grad=False)
    return conv


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
