"""Attention over poses in a frozen network: a fused unit in PyTorch, a few standard operations for other engines."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx, nn

from coattend.export.fused import FrozenAttention, FrozenGate, FrozenSliceConv2d, slice_index
from coattend.export.graph import Fold, Value
from coattend.export.trace import add_operations
from coattend.functional.gates import GateBanks
from coattend.nn import AttentionLayer, PoseAttention

if TYPE_CHECKING:
    from coattend.export.graph import Builder

BATCH_AND_SPACE = (0, 3, 4)  # axes of a map
BATCH_AND_PLANE = (0, 2, 3)  # axes of an image


def co_attention(builder: Builder, matrices: Tensor, value: Value) -> Value:
    """Return ``exp(l - max l) * x`` with logits ``l = x A / n`` for a folded map."""
    order = matrices.shape[-1]
    planes = builder.folded(value, order)
    if builder.eager and not builder.masks:
        conv = value.fold.conv if value.fold is not None and value.owned else None
        if isinstance(conv, nn.Conv2d) and builder.calls(planes, conv):
            unit, name = FrozenAttention(matrices, conv), str(planes.target)
            node = builder.module(name, unit, builder.withdrawn(planes))
        else:
            unit = FrozenAttention(matrices)
            # Apart from the convolutions: tools that replace one drop everything below it.
            node = builder.module(f"attention.{builder.name}", unit, planes)
        return Value(node, order, _fold_through(value.fold, unit.matrices), owned=True, unit=unit)
    constant, mask = co_attention_mask(builder, matrices, planes)
    if builder.masks:
        builder.extra_outputs[f"mask:{builder.name}"] = builder.unfolded(mask, order)
    product = builder.call(torch.mul, mask, planes)
    return Value(product, order, _fold_through(value.fold, constant), owned=True)


def _fold_through(fold: Fold | None, matrices: Tensor) -> Fold | None:
    """Return what a norm after attention can be folded into, given the same for the input of the attention."""
    if fold is None or fold.matrices:
        return None
    return replace(fold, matrices=((matrices, torch.arange(len(matrices))),))


def gate(builder: Builder, layer: AttentionLayer, banks: GateBanks, value: Value) -> Value:
    """Return what the gates of a layer compute: a fused unit in PyTorch, else the operations of the layer."""
    if not builder.eager or builder.masks:
        return traced_attention(builder, layer, value)
    name = f"attention.{builder.name}"
    if not layer.input_on_group:
        return Value(builder.module(name, FrozenGate(banks, 1), builder.original(value)), owned=True)
    order = layer.group.order
    return Value(builder.module(name, FrozenGate(banks, order), builder.folded(value, order)), order, owned=True)


def traced_attention(builder: Builder, layer: AttentionLayer, value: Value) -> Value:
    """Return what an attention layer of any form computes, in the operations that it executes."""
    if not layer.input_on_group:
        return Value(add_operations(builder, layer, builder.original(value), _example(layer), BATCH_AND_PLANE))
    order = layer.group.order
    x = builder.unfolded(contiguous_planes(builder, builder.folded(value, order)), order)
    example = _example(layer)
    if not isinstance(layer, PoseAttention):
        return Value(
            builder.call(torch.flatten, add_operations(builder, layer, x, example, BATCH_AND_SPACE), 1, 2), order
        )
    replaces_forward = type(layer).forward is not PoseAttention.forward or "forward" in vars(layer)
    if builder.masks or not replaces_forward:
        mask = add_operations(builder, layer, x, example, BATCH_AND_SPACE, "mask")
        if builder.masks:
            builder.extra_outputs[f"mask:{builder.name}"] = mask
        if not replaces_forward:
            return Value(builder.call(torch.flatten, builder.call(torch.mul, mask, x), 1, 2), order, owned=True)
    y = add_operations(builder, layer, x, example, BATCH_AND_SPACE)
    return Value(builder.call(torch.flatten, y, 1, 2), order)


def _example(layer: AttentionLayer) -> Tensor:
    """Return an input of the layer whose sizes differ, so that torch.export does not take one for another."""
    like = next((t for t in (*layer.parameters(), *layer.buffers()) if t.is_floating_point()), torch.empty(0))
    sizes = [size for size in (2, 3, 5, 7, 11, 13) if size not in (layer.channels, layer.group.order)]
    poses = (layer.group.order,) if layer.input_on_group else ()
    return like.new_zeros(sizes[0], layer.channels, *poses, *sizes[1:3])


def co_attention_by_slice(
    builder: Builder, matrices: Tensor, conv: nn.Conv2d, value: Value, rows: list[int], bias: Tensor | None
) -> Value:
    """Convolve, attend to each filter slice and sum the slices, in one unit.

    - matrices: (channels * slices, group, group)
    - conv: the convolution of the planes, one channel group per input pose
    - rows: the plane of each (slice, pose) of the first output channel
    """
    order = matrices.shape[-1]
    unit = FrozenSliceConv2d(conv, matrices, bias, rows)
    node = builder.module(builder.name, unit, builder.folded(value, order))
    numbers = torch.arange(len(matrices)) // unit.slices
    fold = Fold(
        conv, slice_of_plane(slice_index(conv, rows, order)) // unit.slices, ((unit.matrices, numbers),), unit.offset
    )
    return Value(node, order, fold, owned=True, unit=unit)


def slice_of_plane(index: Tensor) -> Tensor:
    """Return the number of the filter slice, ``channel * slices + slice``, of each plane of an index."""
    channels, slices, order = index.shape
    numbers = torch.arange(channels * slices).repeat_interleave(order)
    return torch.empty_like(numbers).scatter(0, index.flatten(), numbers)


def co_attention_mask(builder: Builder, matrices: Tensor, planes: fx.Node) -> tuple[Tensor, fx.Node]:
    """Return the mask of planes (batch, channels * order, height, width), and the constant that it is computed with."""
    channels, order, _ = matrices.shape
    constant = (matrices.detach().double().mT / order).to(matrices.dtype).contiguous()
    conv = nn.Conv2d(channels * order, channels * order, 1, groups=channels, bias=False, device="meta")
    conv.weight = nn.Parameter(constant.view(-1, order, 1, 1), requires_grad=False)
    logits = builder.unfolded(builder.module(f"{builder.name}.logits", conv, planes), order)
    below = builder.call(torch.sub, logits, builder.call(torch.amax, logits, 2, keepdim=True))
    return constant, builder.call(torch.flatten, builder.call(torch.exp, below), 1, 2)


def contiguous_planes(builder: Builder, planes: fx.Node) -> fx.Node:
    """Return planes one after the other in memory, as attention needs them; convolutions return channels-last."""
    return builder.graph.call_method("contiguous", (planes,)) if builder.eager else planes
