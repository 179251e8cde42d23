"""How self-attention over positions freezes: two convolutions, and between them the operations that it executes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from coattend.export.attention_rules import BATCH_AND_SPACE
from coattend.export.graph import Value
from coattend.export.rules import apply_rule, freeze_layer
from coattend.export.trace import add_operations
from coattend.nn import GroupSelfAttention2d

if TYPE_CHECKING:
    from coattend.export.graph import Builder


@freeze_layer.register(GroupSelfAttention2d)
def freeze_self_attention(layer: GroupSelfAttention2d, builder: Builder, name: str, value: Value) -> Value:
    """Trace the attention for maps of any size, as far as windows cover them."""
    projected = builder.original(apply_rule(layer.qkv, builder, f"{name}.qkv", value))
    step = layer.window or 1  # sizes that differ, so that torch.export does not take one for another
    example = layer.qkv.weight.new_zeros(2, layer.qkv.out_channels, layer.group.order, 5 * step, 7 * step)
    attended = add_operations(builder.named(name), layer, projected, example, BATCH_AND_SPACE, "attend")
    planes = Value(builder.call(torch.flatten, attended, 1, 2), layer.group.order)
    return apply_rule(layer.out, builder, f"{name}.out", planes)
