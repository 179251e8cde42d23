"""Tracing of layers without a freezing rule: torch.export lists the operations that they execute."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx, nn

if TYPE_CHECKING:
    from coattend.export.graph import Builder


def add_operations(
    builder: Builder, layer: nn.Module, example: Tensor, node: fx.Node, method: str = "forward"
) -> fx.Node:
    """Add what a method of a layer does with a tensor, for all sizes that it treats like those of the example."""
    sizes = dict.fromkeys(range(example.ndim), torch.export.Dim.AUTO)
    try:
        with torch.no_grad():
            program = torch.export.export(_Call(layer, method), (example,), dynamic_shapes=(sizes,), strict=False)
    except Exception as error:  # the errors of torch.export have no common class
        raise ValueError(
            f"freeze cannot trace {type(layer).__name__} ({builder.name}): {str(error).splitlines()[0].rstrip('. ')}. "
            "Its control flow must not depend on the values of tensors; or add a rule with "
            "coattend.export.freeze_layer.register."
        ) from error
    constants = _constants(program)
    nodes: dict[fx.Node, fx.Node] = {}
    for traced in program.graph.nodes:
        if traced.op == "placeholder":
            constant = constants.get(traced.name)
            nodes[traced] = node if constant is None else builder.tensor(f"{builder.name}.{constant[0]}", constant[1])
        elif traced.op == "output":
            (result,) = traced.args[0]
            return nodes[result]
        elif traced.users:  # what has no users is an assertion
            arguments = fx.map_arg((traced.args, traced.kwargs), lambda n: nodes[n])
            nodes[traced] = builder.graph.create_node(traced.op, traced.target, *arguments)
    raise AssertionError("a graph ends with its output")


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
