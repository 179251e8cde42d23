"""Trace a network to a graph of layers; a module whose code cannot be traced becomes one node of it."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, fx, nn

from coattend.conversion.refusal import ConversionError

# What tracing user code can raise: the errors of torch.fx, and those of code that expects tensors and gets proxies.
TRACE_ERRORS = (
    fx.proxy.TraceError, TypeError, ValueError, AttributeError, RuntimeError, IndexError, KeyError, AssertionError,
)  # fmt: skip


class Network(nn.Module):
    """A network as the only part of another one, so that it can be one node if its own code cannot be traced."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Any:
        return self.network(x)


class _Tracer(fx.Tracer):
    def __init__(self, leaves: set[str]) -> None:
        super().__init__()
        self.leaves = leaves
        self.failed: str | None = None

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name in self.leaves or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return super().call_module(m, forward, args, kwargs)
        except TRACE_ERRORS:
            self.failed = self.failed or self.path_of_module(m)  # the innermost of the modules that raise
            raise


def traced(model: nn.Module) -> fx.GraphModule:
    """Return the graph of a network (a :class:`Network`), down to the layers of torch."""
    leaves: set[str] = set()
    while True:
        tracer = _Tracer(leaves)
        try:
            graph = tracer.trace(model)
        except TRACE_ERRORS as error:
            if tracer.failed is None or tracer.failed in leaves:
                raise ConversionError(
                    type(model).__name__, f"torch.fx cannot trace it ({error})", "simplify its forward"
                ) from error
            leaves.add(tracer.failed)
        else:
            return fx.GraphModule(model, graph)


def check_signature(model: nn.Module) -> None:
    """Require a network that takes one image tensor."""
    parameters = list(inspect.signature(model.forward).parameters.values())
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in kinds]
    if len(required) > 1 or not parameters:
        raise ConversionError(
            type(model).__name__,
            f"its forward takes {', '.join(required) or 'nothing'}, expected one batch of images",
            "wrap it in a module that takes the images alone",
        )


class Recorder(fx.Interpreter):
    """Run a graph and record the shape of every value, and the inputs of modules that are not torch's."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.shapes: dict[fx.Node, Any] = {}
        self.inputs: dict[fx.Node, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "call_module" and not is_torch_layer(self.fetch_attr(str(n.target))):
            args, _ = self.fetch_args_kwargs_from_env(n)
            if len(args) == 1 and isinstance(args[0], Tensor):
                self.inputs[n] = args[0].clone()
        result = super().run_node(n)
        self.shapes[n] = shape_of(result)
        return result


def shape_of(value: Any) -> Any:
    """Return the shape of a tensor; of several tensors, theirs; None for anything else."""
    if isinstance(value, Tensor):
        return tuple(value.shape)
    if isinstance(value, (tuple, list)) and value and all(isinstance(v, Tensor) for v in value):
        return [tuple(v.shape) for v in value]
    return None


def is_torch_layer(module: nn.Module) -> bool:
    """Return whether a module is torch's own."""
    return type(module).__module__.startswith("torch.nn") and not isinstance(module, torch.jit.ScriptModule)
