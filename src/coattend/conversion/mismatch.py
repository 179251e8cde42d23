"""Which operation of a converted network first computes something else than the plain network does."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, fx

from coattend.conversion.frames import batch_to_poses
from coattend.conversion.inflate import AGREEMENT, Inflated, name_of
from coattend.conversion.tracing import TRACE_ERRORS
from coattend.conversion.values import Form, Value
from coattend.conversion.verification import moved_back
from coattend.groups import FiniteGroup, transform_image


class _Values(fx.Interpreter):
    """Run a graph and keep the tensors of all nodes, up to the one that fails."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.tensors: dict[fx.Node, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.tensors[n] = result.clone()  # a later operation may overwrite it
        return result


def first_mismatch(inflated: Inflated, images: Tensor, group: FiniteGroup) -> str:
    """Return the name of the first layer or operation whose value is not that of the plain network in every pose."""
    poses = [_values(inflated.plain, transform_image(images, group, int(group.inverse[g]))) for g in group.elements]
    converted = _values(inflated.network, images)
    by_name = {node.name: tensor for node, tensor in converted.items()}
    for node, value in inflated.values.items():
        if value.form is Form.SHARED or not isinstance(value.shape, tuple):
            continue
        computed = by_name.get(value.node.name)
        expected = [pose.get(node) for pose in poses]
        if computed is None or not _agree(computed, expected, value, group):
            return name_of(node)
    return "the network"


def _values(graph: fx.GraphModule, images: Tensor) -> dict[fx.Node, Tensor]:
    interpreter = _Values(graph)
    with torch.no_grad(), contextlib.suppress(*TRACE_ERRORS):  # the operation that fails has no value
        interpreter.run(images)
    return interpreter.tensors


def _agree(computed: Tensor, poses: list[Tensor | None], value: Value, group: FiniteGroup) -> bool:
    tensors = [pose for pose in poses if pose is not None]
    if len(tensors) < group.order:
        return True  # the plain network fails there as well
    if value.form is Form.IMAGE:
        return True
    axes = None if value.form is Form.OWN else value.axes
    moved = [moved_back(y, group, g, axes) for g, y in enumerate(tensors)]
    if any(y.shape != moved[0].shape for y in moved):
        return False
    expected = torch.stack(moved, 1).flatten(0, 1)
    if value.form is Form.MAP:
        expected = batch_to_poses(expected, group.order)
    if computed.shape != expected.shape:
        return False
    return bool((computed - expected).abs().max() <= AGREEMENT * expected.abs().max().clamp(min=1e-300))
