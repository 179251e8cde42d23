"""Inflation: the plain network computed for all poses at once by group convolutions, and averaged over them."""

from __future__ import annotations

import copy
import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from coattend.conversion.frames import BatchedGroupConv2d
from coattend.conversion.geometry import Window, conv_window
from coattend.conversion.layer_rules import convert_layer, has_rule, inflated_conv
from coattend.conversion.operation_rules import convert_operation
from coattend.conversion.refusal import ConversionError
from coattend.conversion.step import Record, Settings, Step, overwrites
from coattend.conversion.tracing import TRACE_ERRORS, Network, Recorder, is_torch_layer, traced
from coattend.conversion.values import IMAGE_AXES, Axes, Builder, Form, Value
from coattend.conversion.verification import orbit
from coattend.nn import GroupPool, PoseConv2d

AGREEMENT = 1e-9  # of converted and plain values, relative to the largest, in float64


@dataclass(frozen=True)
class Inflated:
    """A converted network.

    - plain: the graph of the plain network; values: what the results of its nodes became
    - output_axes: the axes of each output, None for one that does not move with the image
    - uneven: windows that do not cover their maps evenly
    """

    network: fx.GraphModule
    plain: fx.GraphModule
    values: dict[fx.Node, Value]
    output_axes: list[Axes | None]
    records: list[Record]
    uneven: list[tuple[str, Window]]


def inflate(model: nn.Module, settings: Settings, images: Tensor) -> Inflated:
    """Convert a copy of a network in evaluation mode; ``images`` are an example, whose size the result is exact for."""
    plain = traced(Network(copy.deepcopy(model).eval()))
    recorder = Recorder(plain)
    try:
        with torch.no_grad():
            recorder.run(images)
    except TRACE_ERRORS as error:
        raise ConversionError(
            type(model).__name__,
            f"it cannot be run on images {tuple(images.shape)} ({str(error).splitlines()[0]})",
            "pass the size of its images, size=, or an example of them, example=",
        ) from error
    return _Conversion(plain, settings, recorder).run()


class _Conversion:
    def __init__(self, plain: fx.GraphModule, settings: Settings, recorder: Recorder) -> None:
        self.plain = plain
        self.settings = settings
        self.recorder = recorder
        self.builder = Builder(settings.group)
        self.values: dict[fx.Node, Value] = {}
        self.computed: dict[fx.Node, Value] = {}  # the same, before anything was overwritten
        self.records: list[Record] = []
        self.uneven: list[tuple[str, Window]] = []
        self.output_axes: list[Axes | None] = []

    def run(self) -> Inflated:
        for node in self.plain.graph.nodes:
            if node.op == "output":
                self.builder.graph.output(fx.map_arg(node.args[0], self._output))
            else:
                self.values[node] = self.computed[node] = self._converted(node)
        self.builder.graph.lint()
        network = fx.GraphModule(self.builder.attributes, self.builder.graph, class_name="InflatedNetwork")
        return Inflated(network, self.plain, self.computed, self.output_axes, self.records, self.uneven)

    def _converted(self, node: fx.Node) -> Value:
        shape = self.recorder.shapes[node]
        if node.op == "placeholder":
            return Value(Form.IMAGE, shape, IMAGE_AXES, {Form.IMAGE: self.builder.graph.placeholder("x")})
        if node.op == "get_attr":
            name = str(node.target)
            tensor = operator.attrgetter(name)(self.plain)
            attribute = self.builder.attribute(name.removeprefix("network."), tensor)
            return Value(Form.SHARED, shape, None, {Form.SHARED: self.builder.graph.get_attr(attribute)})
        layer = self.plain.get_submodule(str(node.target)) if node.op == "call_module" else None
        step = Step(
            node,
            name_of(node),
            self.settings,
            self.builder,
            {n: self.values[n] for n in node.all_input_nodes},
            shape,
            self.records,
            self.uneven,
        )
        value = self._value(step, layer)
        if overwrites(node, layer) and node.all_input_nodes:
            self.values[node.all_input_nodes[0]] = value  # whoever reads the input later reads what overwrote it
        return value

    def _value(self, step: Step, layer: nn.Module | None) -> Value:
        node = step.node
        if not step.tensors:
            arguments = fx.map_arg((node.args, node.kwargs), lambda n: self.values[n].node)
            target = node.target if layer is None else self.builder.attribute(step.name, layer)
            return step.result(self.builder.graph.create_node(node.op, target, *arguments), Form.SHARED, None)
        if layer is None:
            return convert_operation(step)
        if len(node.all_input_nodes) > 1 or node.kwargs or len(node.args) > 1:
            return step.own_frame(None, "it is called with more than one tensor", layer)
        if has_rule(layer):
            return convert_layer(layer, step)
        if is_torch_layer(layer):
            return step.own_frame(None, f"no rule for {type(layer).__name__}", layer)
        return self._opaque(step, layer)

    def _opaque(self, step: Step, layer: nn.Module) -> Value:
        """Replace the convolutions in a module that torch.fx cannot trace, if it then computes in the common frame.

        Whether it does is measured; otherwise it computes each pose in its own frame.
        """
        for name, module in layer.named_modules():
            if isinstance(module, PoseConv2d):
                convert_layer(module, Step(**{**vars(step), "name": f"{step.name}.{name}"}))  # refuses
        images = self.recorder.inputs.get(step.node)
        if images is not None and step.x.is_map_like:
            replaced = _with_group_convs(layer, step)
            if replaced is not None:
                for axes in (IMAGE_AXES, ("b", "c")):
                    if len(axes) == len(step.shape or ()) and _commutes(layer, replaced, images, step, axes):
                        step.records.append(Record(step.name, "convolutions replaced", "torch.fx cannot trace it"))
                        return step.verbatim(axes, replaced)
        return step.own_frame(None, "torch.fx cannot trace it", layer)

    def _output(self, node: fx.Node) -> Any:
        value = self.values[node]
        if value.form in (Form.SHARED, Form.IMAGE):
            self.output_axes.append(value.axes)
            return value.node
        if not isinstance(value.shape, tuple) or (value.axes is None and len(value.shape) > 2):
            raise ConversionError(
                f"the output ({name_of(node)})",
                f"it has shape {value.shape}, and whether its axes move with the image is not known",
                "return logits (batch, classes) or images (batch, channels, height, width) that layers computed",
            )
        self.output_axes.append(value.axes if value.has_positions and value.axes is not None else None)
        if value.is_map_like:
            pool = GroupPool(self.settings.group, "mean")
            return self.builder.module("orbit_mean", pool, self.builder.as_form(value, Form.MAP))
        form = Form.OWN if value.axes is None else Form.TURNED
        by_pose = self.builder.method(
            "unflatten", self.builder.as_form(value, form), 0, (-1, self.settings.group.order)
        )
        return self.builder.method("mean", by_pose, 1)


def name_of(node: fx.Node) -> str:
    """Return the qualified name of a layer, or the name of an operation with that of the module that calls it."""
    if node.op == "call_module":
        return str(node.target).removeprefix("network.")
    operation = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", str(node.target))
    stack = list(node.meta.get("nn_module_stack", {}).values())
    module = str(stack[-1][0]).removeprefix("network").removeprefix(".") if stack else ""
    return f"{operation} in {module}" if module else operation


def _with_group_convs(layer: nn.Module, step: Step) -> nn.Module | None:
    """Return a copy of a module with group convolutions; None if one of its convolutions has no square window."""
    replaced = copy.deepcopy(layer)
    for name, module in layer.named_modules():
        if isinstance(module, nn.Conv2d):
            window = conv_window(module)
            if window is None or not has_rule(module) or not name:
                return None
            parent, _, attribute = name.rpartition(".")
            setattr(replaced.get_submodule(parent), attribute, BatchedGroupConv2d(inflated_conv(module, window, step)))
    return replaced


def _commutes(layer: nn.Module, replaced: nn.Module, images: Tensor, step: Step, axes: Axes) -> bool:
    """Return whether a module with group convolutions computes for every pose what the layer does in its frame."""
    group, images = step.settings.group, images.double()
    layer, replaced = (copy.deepcopy(module).double() for module in (layer, replaced))
    expected = orbit(layer, images, group, axes)
    batch = images.repeat_interleave(group.order, 0)
    try:
        with torch.no_grad():
            computed = replaced(batch)
    except (RuntimeError, ValueError, TypeError, IndexError):
        return False  # its code depends on the number of images
    if not isinstance(computed, Tensor) or computed.shape != expected.shape:
        return False
    return bool((computed - expected).abs().max() <= AGREEMENT * expected.abs().max())
