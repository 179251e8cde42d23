"""The values of a network while it is being converted: in which form each one holds all poses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from torch import fx, nn

from coattend.conversion.frames import TurnPoses, batch_to_poses, poses_to_batch
from coattend.groups import FiniteGroup

Axes = tuple[str, ...]
IMAGE_AXES: Axes = ("b", "c", "h", "w")


class Form(Enum):
    """How a value of the plain network is held for all poses g; V(x) is the value for an image x."""

    IMAGE = "V(x) itself, which moves like an image: the input, and what acts on each of its pixels"
    MAP = "g.V(g^-1 x) as (batch, channels, group, height, width)"
    TURNED = "g.V(g^-1 x) as (batch * group, ...)"
    OWN = "V(g^-1 x) as (batch * group, ...), each pose in its own frame"
    SHARED = "the same for all poses: parameters, numbers, shapes of batches (batch * group, ...)"


@dataclass(eq=False)
class Value:
    """A value of the plain network in the converted one.

    - shape: in the plain network, for the example; of several tensors, a list of theirs
    - axes: what each axis of the plain value is: b batch, h and w position, c anything else; None if not known
    - nodes: the value in each form in which it has been needed
    """

    form: Form
    shape: Any
    axes: Axes | None
    nodes: dict[Form, fx.Node] = field(default_factory=dict)

    @property
    def node(self) -> fx.Node:
        """The value in the form in which it is computed."""
        return self.nodes[self.form]

    @property
    def has_positions(self) -> bool:
        """Whether the value extends over positions, as far as is known."""
        if self.axes is None:
            return True
        return any(n > 1 for n, axis in zip(self.shape, self.axes, strict=True) if axis in "hw")

    @property
    def is_map_like(self) -> bool:
        """Whether the value is an image of the plain network, so that it can be held as a map."""
        return self.axes == IMAGE_AXES


class Builder:
    """Adds nodes to the graph of a converted network, and brings values into other forms."""

    def __init__(self, group: FiniteGroup) -> None:
        self.group = group
        self.graph = fx.Graph()
        self.attributes: dict[str, Any] = {}
        self.converted: dict[tuple[int, str], tuple[nn.Module, Any]] = {}

    def once(self, layer: nn.Module, form: str, convert: Callable[[], Any]) -> Any:
        """Return what a layer becomes in a form, the same for every call of the layer: its weights stay one."""
        key = id(layer), form
        if key not in self.converted:
            self.converted[key] = layer, convert()  # with the layer, whose id no other one may get
        return self.converted[key][1]

    def module(self, name: str, module: nn.Module, *nodes: fx.Node) -> fx.Node:
        """Call a module under the name of the layer that it stands for, or a similar one if that is taken."""
        return self.graph.call_module(self.attribute(name, module), nodes)

    def attribute(self, name: str, content: Any) -> str:
        """Store a module or tensor; one that is stored already, being shared, keeps its name."""
        for known, value in self.attributes.items():
            if value is content:
                return known
        unique, number = name, 1
        while unique in self.attributes:
            number += 1
            unique = f"{name}_{number}"
        self.attributes[unique] = content
        return unique

    def call(self, function: Callable[..., Any], *arguments: Any) -> fx.Node:
        """Call a function."""
        return self.graph.call_function(function, arguments)

    def method(self, name: str, node: fx.Node, *arguments: Any) -> fx.Node:
        """Call a method of a tensor."""
        return self.graph.call_method(name, (node, *arguments))

    def as_form(self, value: Value, form: Form) -> fx.Node:
        """Return a value in another form; from its own frame only if its axes are known."""
        if value.form is Form.SHARED:
            return value.node
        if form not in value.nodes:
            value.nodes[form] = self._converted(value, form)
        return value.nodes[form]

    def _converted(self, value: Value, form: Form) -> fx.Node:
        order = self.group.order
        if value.form is Form.IMAGE and form is Form.MAP:
            return self.method("expand", self.method("unsqueeze", value.node, 2), -1, -1, order, -1, -1)
        if form is Form.MAP:
            return self._traced(batch_to_poses, self.as_form(value, Form.TURNED), order)
        if form is Form.TURNED and value.form is Form.OWN:
            return self._turned(value, value.node, back=False)
        if form is Form.TURNED:
            return self._traced(poses_to_batch, self.as_form(value, Form.MAP))
        assert form is Form.OWN
        return self._turned(value, self.as_form(value, Form.TURNED), back=True)

    def _traced(self, function: Callable[..., Any], node: fx.Node, *constants: Any) -> fx.Node:
        """Add the operations of a function, so that every tool sees operations of torch only."""
        result = function(fx.Proxy(node, fx.proxy.GraphAppendingTracer(self.graph)), *constants)
        return result.node

    def _turned(self, value: Value, node: fx.Node, back: bool) -> fx.Node:
        if not value.has_positions:
            return node
        assert value.axes is not None
        axes = (value.axes.index("h"), value.axes.index("w"))
        return self.module("own_frame" if back else "common_frame", TurnPoses(self.group, axes, back), node)
