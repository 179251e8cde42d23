"""Attention over poses in a frozen network: one product of small matrices and a few element-wise operations."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx, nn

from coattend.export.graph import Fold, Value
from coattend.export.trace import add_operations
from coattend.nn import AttentionLayer, PoseAttention

if TYPE_CHECKING:
    from coattend.export.graph import Builder

BATCH_AND_SPACE = (0, 3, 4)  # axes of a map
BATCH_AND_PLANE = (0, 2, 3)  # axes of an image


def co_attention(builder: Builder, matrices: Tensor, value: Value) -> Value:
    """Return ``exp(l - max l) * x`` with logits ``l = x A / n`` for a folded map."""
    order = matrices.shape[-1]
    planes = contiguous_planes(builder, builder.folded(value, order))
    constant, mask = co_attention_mask(builder, matrices, planes)
    if builder.masks:
        builder.extra_outputs[f"mask:{builder.name}"] = builder.unfolded(mask, order)
    product = builder.inplace("mul_", mask, planes)
    fold = None
    if value.fold is not None and not value.fold.matrices:
        fold = replace(value.fold, matrices=((constant, torch.arange(len(constant))),))
    return Value(product, order, fold, owned=True)


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
    builder: Builder, matrices: Tensor, conv: nn.Conv2d, planes: fx.Node, index: Tensor, offset: Tensor
) -> Value:
    """Attend to each filter slice and sum the slices and the offset, one slice after the other.

    What is gathered for one slice is still in the cache when it is added, and small enough for the allocator to keep.

    - matrices: (channels * slices, group, group)
    - planes: the output of ``conv``
    - index: the plane of each (channel, slice, pose)
    - offset: (channels * group, 1, 1), added to the sum
    """
    channels, slices, order = index.shape
    planes = contiguous_planes(builder, planes)
    total = builder.tensor(f"{builder.name}.offset", offset)
    constants = []
    for number, of_slice in enumerate(matrices.unflatten(0, (channels, slices)).unbind(1)):
        selected = builder.tensor(f"{builder.name}.planes", index[:, number].flatten())
        responses = builder.call(torch.index_select, planes, 1, selected)
        constant, mask = co_attention_mask(builder, of_slice, responses)
        constants.append((constant, torch.arange(channels)))
        if number == 0:
            total = builder.inplace("add_", builder.inplace("mul_", mask, responses), total)
        else:
            total = builder.inplace("addcmul_", total, mask, responses)
    fold = Fold(conv, slice_of_plane(index) // slices, tuple(constants), offset)
    return Value(total, order, fold, owned=True)


def slice_of_plane(index: Tensor) -> Tensor:
    """Return the number of the filter slice, ``channel * slices + slice``, of each plane of an index."""
    channels, slices, order = index.shape
    numbers = torch.arange(channels * slices).repeat_interleave(order)
    return torch.empty_like(numbers).scatter(0, index.flatten(), numbers)


def co_attention_mask(builder: Builder, matrices: Tensor, planes: fx.Node) -> tuple[Tensor, fx.Node]:
    """Return the mask of planes (batch, channels * order, height, width), and the constant that it is computed with.

    In PyTorch, the logits are a product of small matrices and the mask a power of 2, which are fastest there; elsewhere
    a grouped 1x1 convolution and a power of e.
    """
    channels, order, _ = matrices.shape
    factor = 1 / math.log(2) if builder.eager else 1.0
    constant = (matrices.detach().double().mT * (factor / order)).to(matrices.dtype).contiguous()
    if builder.eager:
        by_pose = builder.call(torch.flatten, builder.unfolded(planes, order), 3)
        logits = builder.call(torch.matmul, builder.tensor(f"{builder.name}.matrices", constant), by_pose)
    else:
        conv = nn.Conv2d(channels * order, channels * order, 1, groups=channels, bias=False, device="meta")
        conv.weight = nn.Parameter(constant.view(-1, order, 1, 1), requires_grad=False)
        logits = builder.unfolded(builder.module(f"{builder.name}.logits", conv, planes), order)
    below = builder.inplace("sub_", logits, builder.call(torch.amax, logits, 2, keepdim=True))
    if builder.eager:
        mask = builder.inplace("exp2_", below)
        return constant, builder.call(torch.reshape, mask, builder.call(getattr, planes, "shape"))
    return constant, builder.call(torch.flatten, builder.call(torch.exp, below), 1, 2)


def contiguous_planes(builder: Builder, planes: fx.Node) -> fx.Node:
    """Return planes one after the other in memory, as attention needs them; convolutions return channels-last."""
    return builder.graph.call_method("contiguous", (planes,)) if builder.eager else planes
