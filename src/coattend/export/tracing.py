"""Attention layers without a freezing rule of their own: the operations that they execute, traced."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx, nn
from torch.export import Dim

from coattend.export.attention_rules import ordered
from coattend.export.value import Value
from coattend.nn import PoseAttention

if TYPE_CHECKING:
    from coattend.export.graph import Builder


class _Mask(nn.Module):
    """The mask of an attention layer as a module."""

    def __init__(self, attention: PoseAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor) -> Tensor:
        return self.attention.mask(x)


def traced_attention(builder: Builder, name: str, layer: PoseAttention, value: Value) -> Value:
    """Add the operations of an attention layer to the graph: those of ``forward`` if the layer overrides it."""
    x = builder.unfolded(ordered(builder, builder.folded(value, layer.group.order)), layer.group.order)
    overrides_forward = type(layer).forward is not PoseAttention.forward or "forward" in vars(layer)
    mask = None
    if builder.masks or not overrides_forward:
        mask = _added(builder, name, _Mask(layer), layer, x)
        builder.expose_mask(mask)
    if overrides_forward or mask is None:
        return Value(_added(builder, name, layer, layer, x))
    return Value(builder.call(torch.mul, mask, x), owned=True)


def _added(builder: Builder, name: str, module: nn.Module, layer: PoseAttention, x: fx.Node) -> fx.Node:
    """Copy the operations of a module that takes a map into the graph; its tensors become constants."""
    program = _program(name, module, layer)
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    constants = {**signature.inputs_to_lifted_tensor_constants}
    nodes: dict[fx.Node, fx.Node] = {}
    for node in program.graph.nodes:
        if node.op == "output":
            (result,) = node.args[0]
            return nodes[result]
        if node.op == "placeholder" and not node.users:
            continue
        if node.op == "placeholder" and (key := names.get(node.name, constants.get(node.name))) is not None:
            tensor = program.constants[key] if key in program.constants else operator.attrgetter(key)(module)
            nodes[node] = builder.tensor(f"{name}.{key}", tensor.detach().clone())
        elif node.op == "placeholder":
            nodes[node] = x
        elif "assert" not in str(node.target):  # tracing asserts facts about sizes
            nodes[node] = builder.graph.node_copy(node, nodes.__getitem__)
    raise AssertionError("a graph ends with its output")


def _program(name: str, module: nn.Module, layer: PoseAttention) -> torch.export.ExportedProgram:
    like = next((t for t in (*layer.parameters(), *layer.buffers()) if t.is_floating_point()), torch.empty(0))
    sizes = (size for size in (2, 3, 5, 7, 11, 13) if size not in (layer.channels, layer.group.order))
    batch, height, width = next(sizes), next(sizes), next(sizes)  # unequal sizes, so that none is taken for another
    example = torch.zeros(batch, layer.channels, layer.group.order, height, width, dtype=like.dtype, device=like.device)
    try:
        return torch.export.export(
            module, (example,), dynamic_shapes=({0: Dim("batch"), 3: Dim("height"), 4: Dim("width")},), strict=False
        )
    except Exception as error:
        raise ValueError(
            f"freeze cannot trace {type(layer).__name__} ({name}) by torch.export: {str(error).splitlines()[0]} Its "
            "course must not depend on values or sizes; or override its freeze method."
        ) from error
