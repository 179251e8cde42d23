"""Freeze a network: trace its forward, and add what each layer computes to a graph of plain torch."""

from __future__ import annotations

import inspect
import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from coattend.export import (  # noqa: F401 - importing them registers their rules
    conv_rules,
    dynamic_rules,
    norm_rules,
    self_attention_rules,
)
from coattend.export.graph import Builder, Value
from coattend.export.input import without_turns
from coattend.export.rules import apply_rule, require_own_forward, rule_class
from coattend.models import EquivariantNetwork
from coattend.models.classifier import Classifier

# Functions and methods that treat all elements alike, so that they can be applied to folded maps.
POINTWISE_FUNCTIONS = {
    operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, operator.iadd, operator.isub,
    operator.imul, torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum, torch.neg, torch.abs,
    torch.exp, torch.sigmoid, torch.tanh, torch.relu, torch.clamp, torch.sqrt, torch.square, F.relu, F.relu6, F.elu,
    F.gelu, F.silu, F.mish, F.leaky_relu, F.softplus, F.hardtanh, F.hardswish,
}  # fmt: skip
POINTWISE_METHODS = {
    "add", "sub", "mul", "div", "neg", "abs", "exp", "sigmoid", "tanh", "relu", "clamp", "sqrt", "square", "contiguous",
}  # fmt: skip


def freeze(model: nn.Module) -> fx.GraphModule:
    """Return the network as a graph of torch.nn modules and torch functions, with the same outputs.

    Filters are expanded once, batch norms are folded into the convolutions before them, dropout is removed, and the
    convolutions exchange 4-D tensors (batch, channels * poses, height, width): to other tools it is an ordinary CNN.
    Attention uses the operators of this library; ``torch.save`` writes torch functions instead, and the file loads
    where this library is not installed. The network must be in evaluation mode; it is not changed, and shares no memory
    with the frozen one. Attention overwrites its own results, so a frozen network is for inference; use the original
    for gradients. A ``Classifier`` freezes with its preprocessing.

    >>> from coattend.models import create_model
    >>> frozen = freeze(create_model("p4cnn").eval())
    >>> frozen.get_submodule("stages.0.layer2.conv")
    Conv2d(40, 40, kernel_size=(3, 3), stride=(1, 1))
    """
    return frozen_with_outputs(model, Builder())


def frozen_with_outputs(model: nn.Module, builder: Builder) -> fx.GraphModule:
    """Freeze a network; the extra outputs of the builder are returned after the network's own output, in order."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"freeze expects a network, an nn.Module, got {type(model).__name__}.")
    training = [name or type(model).__name__ for name, module in model.named_modules() if module.training]
    if training:
        raise ValueError(
            f"freeze expects a network in evaluation mode, but {training[0]} is in training mode, where norms follow "
            "each batch and dropout is random; call model.eval() first."
        )
    require_own_forward(model, "")
    single = without_turns(model)
    if builder.image_shape is None and isinstance(single, (Classifier, EquivariantNetwork)):
        builder.image_shape = single.image_shape
    try:
        graph = LayerTracer().trace(model)
    except (fx.proxy.TraceError, TypeError, RuntimeError, AssertionError) as error:  # of code that gets no tensors
        raise ValueError(
            f"freeze could not trace the forward of {type(model).__name__}: {str(error).rstrip('. ')}. Its control "
            "flow must not depend on the values or sizes of tensors."
        ) from error
    with torch.no_grad():
        _translate(graph, model, builder)
    builder.graph.lint()
    frozen = fx.GraphModule(builder.attributes, builder.graph, class_name=f"Frozen{type(model).__name__}")
    return frozen.requires_grad_(False).eval()


class LayerTracer(fx.Tracer):
    """Trace a network down to its layers, those of this library as well as torch's.

    ``fx.symbolic_trace`` would enter the layers of this library, which check shapes, and fail there. The graph serves
    feature extractors and other tools of torch.fx, and can be trained like the network itself:

    >>> from coattend.models import create_model
    >>> model = create_model("p4cnn")
    >>> graph = fx.GraphModule(model, LayerTracer().trace(model))
    """

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether to stop at a module: at layers with a rule for freezing and at those of torch."""
        return rule_class(type(m)) is not None or super().is_leaf_module(m, module_qualified_name)


def _translate(graph: fx.Graph, model: nn.Module, builder: Builder) -> None:
    values: dict[fx.Node, Value] = {}
    for node in graph.nodes:
        if node.op == "output":
            outputs = fx.map_arg(node.args[0], lambda n: builder.original(values[n]))
            extra = tuple(builder.extra_outputs.values())
            builder.graph.output((outputs, *extra) if extra else outputs)
            return
        value = _translated(node, model, builder, values)
        values[node] = value if len(node.users) == 1 else value.shared()


def _translated(node: fx.Node, model: nn.Module, builder: Builder, values: dict[fx.Node, Value]) -> Value:
    if node.op == "placeholder":
        return Value(builder.graph.placeholder(str(node.target), default_value=_default(node)))
    if node.op == "get_attr":
        return Value(builder.tensor(str(node.target), operator.attrgetter(str(node.target))(model).detach().clone()))
    if node.op == "call_module":
        name = str(node.target)
        return apply_rule(*_layer_and_input(node, model, name, values, builder))
    poses = _common_poses(node, values)
    arguments = fx.map_arg((node.args, node.kwargs), lambda n: _argument(values[n], poses, builder))
    return Value(builder.graph.create_node(node.op, node.target, *arguments), poses)


def _default(node: fx.Node) -> Any:
    return node.args[0] if node.args else inspect.Parameter.empty


def _argument(value: Value, poses: int | None, builder: Builder) -> fx.Node:
    return builder.original(value) if poses is None else value.node


def _layer_and_input(
    node: fx.Node, model: nn.Module, name: str, values: dict[fx.Node, Value], builder: Builder
) -> tuple[nn.Module, Builder, str, Value]:
    layer = model.get_submodule(name)
    if len(node.args) != 1 or node.kwargs or not isinstance(node.args[0], fx.Node):
        raise ValueError(
            f"freeze expects layers that are called with one tensor, but {type(layer).__name__} ({name}) is called "
            f"with {len(node.args)} arguments and {len(node.kwargs)} keywords."
        )
    return layer, builder, name, values[node.args[0]]


def _common_poses(node: fx.Node, values: dict[fx.Node, Value]) -> int | None:
    """Return the poses of all inputs if the operation can be applied to folded maps, None if it needs the originals."""
    inputs = {values[n].poses for n in node.all_input_nodes}
    joins_channels = node.target is torch.cat and (node.args[1:] or (node.kwargs.get("dim"),)) == (1,)
    pointwise = node.target in POINTWISE_FUNCTIONS or (node.op == "call_method" and node.target in POINTWISE_METHODS)
    if len(inputs) == 1 and (pointwise or joins_channels):
        return inputs.pop()
    return None
