"""Co-attention in a frozen network: one product of small matrices and a few element-wise operations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx, nn

from coattend.export.value import Value
from coattend.nn import CoAttention, PoseAttention

if TYPE_CHECKING:
    from coattend.export.graph import Builder

SMALLEST_SCALE = 1e-12  # norms that scale by less are not divided by


def attended(builder: Builder, name: str, layer: nn.Module, value: Value) -> Value:
    """Apply the freezing rule of an attention layer."""
    if not isinstance(layer, PoseAttention):
        raise ValueError(
            f"freeze does not know what {type(layer).__name__} ({name}) does instead of a PoseAttention; derive it "
            "from coattend.nn.PoseAttention, or add a rule for the layer that holds it with "
            "coattend.export.freeze_layer.register."
        )
    builder.layer = name
    result: Value = PoseAttention.freeze(layer, builder, value) if _is_changed(layer) else layer.freeze(builder, value)
    return result


def _is_changed(layer: PoseAttention) -> bool:
    """Return whether an assignment to the layer itself overrides what its class computes."""
    return bool({"mask", "forward"} & vars(layer).keys())


def co_attended(builder: Builder, name: str, matrix: Tensor, value: Value) -> Value:
    """Add ``exp(l - max l) * x`` with logits ``l = x A / n`` for a folded map."""
    order = matrix.shape[-1]
    planes = ordered(builder, builder.folded(value, order))
    matrices, mask = mask_of(builder, name, matrix, planes)
    if builder.masks:
        builder.extra_outputs[f"mask:{name}"] = builder.unfolded(mask, order)
    product = builder.inplace("mul_", mask, planes)
    conv = value.conv

    def absorb(scale: Tensor, shift: Tensor) -> fx.Node | None:
        """``s (m x) + t = m (s x) + t``, the logits being those of ``(s x) / s``."""
        if conv is None or not _can_divide_by(scale):
            return None
        scale_filters(conv, scale.repeat_interleave(order), None)
        matrices.copy_(matrices.double() / scale[:, None, None])
        offset = shift.repeat_interleave(order)[:, None, None].to(matrices.dtype)
        return builder.inplace("add_", product, builder.tensor(f"{name}.shift", offset))

    return Value(product, order, absorb, owned=True)


def attended_slices(
    builder: Builder, name: str, layer: nn.Module, conv: nn.Conv2d, planes: fx.Node, index: Tensor, bias: Tensor
) -> Value:
    """Attend to each slice on its own and sum the slices and the bias, by the rule of the attention layer.

    ``index`` holds the plane of each (channel, slice, pose) among those that ``conv`` returns.
    """
    if isinstance(layer, CoAttention) and type(layer).freeze is CoAttention.freeze and not _is_changed(layer):
        return co_attended_slices(builder, name, layer, conv, planes, index, bias)
    slices, order = index.shape[1:]
    where = builder.tensor(f"{name}.planes", index.flatten())
    responses = builder.respond(name, Value(builder.call(torch.index_select, planes, 1, where), order))
    weighed = builder.call(
        torch.unflatten, builder.original(attended(builder, name, layer, responses)), 1, (-1, slices)
    )
    offset = builder.tensor(f"{name}.offset", bias[:, None, None, None])
    return Value(builder.call(torch.add, builder.call(torch.sum, weighed, 2), offset), owned=True)


def co_attended_slices(
    builder: Builder, name: str, layer: CoAttention, conv: nn.Conv2d, planes: fx.Node, index: Tensor, bias: Tensor
) -> Value:
    """Apply co-attention to each slice on its own and sum the slices and the bias.

    ``index`` holds the plane of each (channel, slice, pose) among those that ``conv`` returns, which are ordered by
    input pose, channel and output pose.
    """
    channels, slices, order = index.shape
    matrices = layer.matrix().unflatten(0, (channels, slices))
    offset = bias.repeat_interleave(order)[:, None, None]
    total = builder.tensor(f"{name}.offset", offset)
    planes = ordered(builder, planes)
    constants = []
    # In torch one slice after the other: what is gathered for one still lies in the cache when it is added up, and is
    # small enough for the allocator to keep. Other engines see to that themselves.
    for part in range(slices) if builder.eager else (slice(None),):
        where = builder.tensor(f"{name}.planes", index[:, part].flatten())
        responses = builder.call(torch.index_select, planes, 1, where)
        constant, mask = mask_of(builder, name, matrices[:, part].reshape(-1, order, order), responses)
        constants.append(constant)
        if builder.eager:
            if total.op == "get_attr":
                total = builder.inplace("add_", builder.inplace("mul_", mask, responses), total)
            else:
                total = builder.inplace("addcmul_", total, mask, responses)
            continue
        for wanted, kind, node in ((builder.responses, "response", responses), (builder.masks, "mask", mask)):
            if wanted:
                builder.extra_outputs[f"{kind}:{name}"] = builder.unfolded(node, order)
        weighed = builder.call(torch.unflatten, builder.call(torch.mul, mask, responses), 1, (-1, slices, order))
        total = builder.call(torch.add, builder.call(torch.flatten, builder.call(torch.sum, weighed, 2), 1, 2), total)

    def absorb(scale: Tensor, shift: Tensor) -> fx.Node | None:
        if builder.responses or not _can_divide_by(scale):
            return None
        scale_filters(conv, scale[:, None].expand(channels, slices).repeat(order, 1).flatten(), None)
        for constant in constants:
            constant.copy_(constant.double() / scale.repeat_interleave(len(constant) // channels)[:, None, None])
        offset.copy_((bias.double() * scale + shift).repeat_interleave(order)[:, None, None])
        return total

    return Value(total, order, absorb, owned=True)


def mask_of(builder: Builder, name: str, matrices: Tensor, planes: fx.Node) -> tuple[Tensor, fx.Node]:
    """The mask for planes (batch, channels * order, height, width), in the same shape, and the constant behind it.

    In torch, the logits are a product of small matrices and the mask a power of 2, which are fastest there; elsewhere a
    grouped 1x1 convolution and a power of e.
    """
    channels, order, _ = matrices.shape
    factor = 1 / math.log(2) if builder.eager else 1.0
    constant = (matrices.detach().double().mT * (factor / order)).to(matrices.dtype).contiguous()
    if builder.eager:
        by_pose = builder.call(torch.flatten, builder.unfolded(planes, order), 3)
        logits = builder.call(torch.matmul, builder.tensor(f"{name}.matrices", constant), by_pose)
    else:
        conv = nn.Conv2d(channels * order, channels * order, 1, groups=channels, bias=False, device="meta")
        conv.weight = nn.Parameter(constant.view(-1, order, 1, 1), requires_grad=False)
        logits = builder.unfolded(builder.module(f"{name}.logits", conv, planes), order)
    below = builder.inplace("sub_", logits, builder.call(torch.amax, logits, 2, keepdim=True))
    if builder.eager:
        mask = builder.inplace("exp2_", below)
        return constant, builder.call(torch.reshape, mask, builder.call(getattr, planes, "shape"))
    return constant, builder.call(torch.flatten, builder.call(torch.exp, below), 1, 2)


def ordered(builder: Builder, planes: fx.Node) -> fx.Node:
    """Plane after plane, as attention needs it; convolutions prefer and return pixel after pixel."""
    return builder.graph.call_method("contiguous", (planes,)) if builder.eager else planes


def scale_filters(conv: nn.Conv2d, scale: Tensor, shift: Tensor | None) -> None:
    """Let a convolution return ``scale * y + shift``; both (planes,) and float64, so that rounding happens once."""
    dtype = conv.weight.dtype
    conv.weight.data = (conv.weight.double() * scale[:, None, None, None]).to(dtype)
    if conv.bias is None and shift is None:
        return
    bias = torch.zeros_like(scale) if conv.bias is None else conv.bias.double() * scale
    conv.bias = nn.Parameter((bias if shift is None else bias + shift).to(dtype), requires_grad=False)


def _can_divide_by(scale: Tensor) -> bool:
    return bool((scale.abs() > SMALLEST_SCALE).all())
