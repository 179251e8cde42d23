"""Tracing of layers without a freezing rule: torch.export lists the operations that they execute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from coattend.nn import AttentionLayer

if TYPE_CHECKING:
    from coattend.export.graph import Builder

CASTS = (torch.ops.aten.to.dtype, torch.ops.aten.to.dtype_layout, torch.ops.aten._to_copy.default)


def add_operations(
    builder: Builder,
    layer: nn.Module,
    node: fx.Node,
    example: Tensor,
    free_axes: Sequence[int],
    method: str = "forward",
) -> fx.Node:
    """Add what a method of a layer does with a tensor.

    The tensor may differ from the example in its values and in its sizes along some axes.
    """
    sizes = dict.fromkeys(free_axes, torch.export.Dim.DYNAMIC)
    try:
        with torch.no_grad():
            program = torch.export.export(_Call(layer, method), (example,), dynamic_shapes=(sizes,), strict=False)
    except Exception as error:  # the errors of torch.export have no common class
        raise ValueError(
            f"freeze cannot trace {type(layer).__name__} ({builder.name}): {str(error).splitlines()[0].rstrip('. ')}. "
            "It must not depend on the values of tensors, nor on their sizes other than by shape; or add a rule with "
            "coattend.export.freeze_layer.register."
        ) from error
    constants = _constants(program)
    nodes: dict[fx.Node, fx.Node] = {}
    for traced in program.graph.nodes:
        if not traced.users and traced.op != "output":  # an assertion, or a constant that is not read
            continue
        if traced.op == "placeholder":
            constant = constants.get(traced.name)
            nodes[traced] = node if constant is None else builder.tensor(f"{builder.name}.{constant[0]}", constant[1])
        elif traced.op == "output":
            (result,) = traced.args[0]
            return nodes[result]
        elif isinstance(layer, AttentionLayer) and _casts_to(traced, example.dtype):
            # To the type of the input, which may be another one when the frozen network has been converted.
            nodes[traced] = builder.graph.call_method("type_as", (nodes[traced.all_input_nodes[0]], node))
        else:
            arguments, named = fx.map_arg((traced.args, traced.kwargs), lambda n: nodes[n])
            numbers = tuple(_as_constant(builder, traced, argument) for argument in arguments)
            nodes[traced] = builder.graph.create_node(traced.op, traced.target, numbers, named)
    raise AssertionError("a graph ends with its output")


def _casts_to(traced: fx.Node, dtype: torch.dtype) -> bool:
    return traced.target in CASTS and traced.meta["val"].dtype == dtype


def _as_constant(builder: Builder, traced: fx.Node, argument: Any) -> Any:
    """Return a number that an operation combines with a tensor as a tensor: the ONNX exporter rounds numbers."""
    if isinstance(argument, float) and getattr(traced.target, "_overloadname", None) == "Tensor":
        return builder.tensor(f"{builder.name}.number", torch.tensor(argument, dtype=traced.meta["val"].dtype))
    return argument


def _constants(program: torch.export.ExportedProgram) -> dict[str, tuple[str, Tensor]]:
    """Return name and value of each parameter, buffer and constant, by the name of its placeholder."""
    signature, stored = program.graph_signature, {**program.state_dict, **program.constants}
    names = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    return {
        placeholder: (name.removeprefix("layer."), stored[name].detach().clone()) for placeholder, name in names.items()
    }


class _Call(nn.Module):
    """A method of a layer as the forward of a module."""

    def __init__(self, layer: nn.Module, method: str) -> None:
        super().__init__()
        self.layer = layer
        self.method = method

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = getattr(self.layer, self.method)(x)
        return result
