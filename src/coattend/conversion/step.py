"""One operation of the plain network on its way into the converted one."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from torch import fx, nn

from coattend.conversion.frames import swaps_axes
from coattend.conversion.geometry import Window
from coattend.conversion.values import Axes, Builder, Form, Value
from coattend.groups import FiniteGroup


@dataclass(frozen=True)
class Settings:
    """How a network is to be converted; see :func:`coattend.equivariantize`."""

    group: FiniteGroup
    relative: Mapping[str, tuple[int, ...]]
    attention: bool
    strides: str

    def relative_of(self, layer: str) -> tuple[int, ...]:
        """Return the relative poses of a layer: those of the first pattern that its name matches, else the identity."""
        return next((poses for pattern, poses in self.relative.items() if fnmatch(layer, pattern)), (0,))


@dataclass(frozen=True)
class Record:
    """What became of a layer or operation: ``how`` it is computed, and the reason where it is in its own frame."""

    layer: str
    how: str
    reason: str = ""


@dataclass
class Step:
    """An operation, its inputs in the converted network, and the ways to convert it.

    - name: the qualified name of the layer, or what the operation is and where it is called
    - inputs: the values that the operation reads, by their nodes in the plain network
    - shape: of the result in the plain network, for the example
    """

    node: fx.Node
    name: str
    settings: Settings
    builder: Builder
    inputs: dict[fx.Node, Value]
    shape: Any
    records: list[Record]
    uneven: list[tuple[str, Window]]

    @property
    def tensors(self) -> list[Value]:
        """The inputs that differ between poses."""
        return [value for value in self.inputs.values() if value.form is not Form.SHARED]

    @property
    def x(self) -> Value:
        """The first input that differs between poses."""
        return self.tensors[0]

    def result(self, node: fx.Node, form: Form, axes: Axes | None, how: str = "", reason: str = "") -> Value:
        """Return a value in a form; ``how`` is recorded if given."""
        if how:
            self.records.append(Record(self.name, how, reason))
        if form is Form.OWN and axes is not None and not self._turns(axes):
            axes = None
        return Value(form, self.shape, axes, {form: node})

    def _turns(self, axes: Axes) -> bool:
        """Return whether the poses of a value fit into one batch when they are turned: squares, or no quarter turns."""
        sizes = {n for n, axis in zip(self.shape, axes, strict=True) if axis in "hw"}
        return len(sizes) <= 1 or not swaps_axes(self.settings.group)

    def as_map(self) -> fx.Node | None:
        """Return the input as a map, None if it is not known to be an image of the plain network."""
        return self.builder.as_form(self.x, Form.MAP) if self.x.is_map_like else None

    def on_planes(self, layer: nn.Module) -> Value:
        """Apply a layer that treats all planes alike to the planes of a map."""
        builder, node = self.builder, self.builder.as_form(self.x, Form.MAP)
        planes = builder.module(self.name, layer, builder.method("flatten", node, 1, 2))
        shape = (-1, self.settings.group.order)
        return self.result(builder.method("unflatten", planes, 1, shape), Form.MAP, ("b", "c", "h", "w"))

    def verbatim(self, axes: Axes | None, module: nn.Module | None = None) -> Value:
        """Execute what does not depend on directions: in the common frame if all inputs are there."""
        common = all(value.axes is not None and value.form is not Form.OWN for value in self.tensors)
        return self._executed(Form.TURNED if common and axes is not None else Form.OWN, axes, module)

    def own_frame(self, axes: Axes | None, reason: str, module: nn.Module | None = None) -> Value:
        """Execute the operation for every pose in its own frame, as the plain network does for each turned image."""
        self.records.append(Record(self.name, "own frame", reason))
        return self._executed(Form.OWN, axes, module)

    def _executed(self, form: Form, axes: Axes | None, module: nn.Module | None) -> Value:
        node, builder = self.node, self.builder
        if module is not None and node.op != "call_module":  # a function, as the layer that computes the same
            executed = builder.module(self.name, module, builder.as_form(self.x, form))
            return self.result(executed, form, axes)
        arguments = fx.map_arg((node.args, node.kwargs), lambda n: builder.as_form(self.inputs[n], form))
        target = out_of_place(node) if module is None else builder.attribute(self.name, module)
        return self.result(builder.graph.create_node(node.op, target, *arguments), form, axes)


OUT_OF_PLACE = {"iadd": "add", "isub": "sub", "imul": "mul", "itruediv": "truediv"}


def out_of_place(node: fx.Node) -> Any:
    """Return the target of a node, of an operation that overwrites its input the one that does not."""
    if node.op == "call_method" and str(node.target).endswith("_") and not str(node.target).endswith("__"):
        return str(node.target).rstrip("_")
    name = getattr(node.target, "__name__", "")
    if node.op == "call_function" and name in OUT_OF_PLACE and getattr(operator, name) is node.target:
        return getattr(operator, OUT_OF_PLACE[name])
    return node.target


def overwrites(node: fx.Node, layer: nn.Module | None) -> bool:
    """Return whether an operation overwrites its first input."""
    if layer is not None:
        return bool(getattr(layer, "inplace", False))
    return out_of_place(node) is not node.target or bool(node.kwargs.get("inplace", False))


def dimensions(value: Value, dims: Any) -> list[int] | None:
    """Return axes given as one number or several, counted from the first; None if they are not plain numbers."""
    numbers = [dims] if isinstance(dims, int) else dims
    if not isinstance(numbers, Sequence) or not all(isinstance(n, int) for n in numbers):
        return None
    return [n % len(value.shape) for n in numbers]
