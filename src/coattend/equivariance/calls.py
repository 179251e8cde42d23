"""Calls of the layers inside a module, recorded while it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from coattend.equivariance.fields import Field
from coattend.groups import FiniteGroup
from coattend.nn import observe


@dataclass
class MeasuredCall:
    """A module with the tensors that it was called with, for x and for g.x of every exact element g."""

    name: str
    module: nn.Module
    inputs: tuple[Tensor, ...]
    run: Callable[..., Any]
    moved_inputs: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)
    error: float | None = None

    @property
    def is_leaf(self) -> bool:
        """Whether the module contains no other layers."""
        return next(self.module.children(), None) is None


def recorded_calls(module: nn.Module, x: Tensor, group: FiniteGroup, field: Field) -> list[MeasuredCall]:
    """Record the calls of one pass for x, and their inputs in one pass for every exact element."""
    calls = record(module, x)
    for g in group.exact_elements:
        for call, moved in zip(calls, record(module, field.move(x, group, g)), strict=True):
            call.moved_inputs[g] = moved.inputs
    return calls


def record(module: nn.Module, x: Tensor) -> list[MeasuredCall]:
    """Return every call with tensors during one pass, a parent before its children."""

    def with_tensors(call: observe.Call) -> MeasuredCall | None:
        tensors = tuple(a.clone() for a in call.inputs if isinstance(a, Tensor) and a.is_floating_point())
        run = _runner(call.layer, call.inputs, call.keywords)
        return MeasuredCall(call.name, call.layer, tensors, run) if tensors else None

    with observe.recording(module, with_tensors, before=True) as calls:
        module(x)
    return calls


def _runner(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
    """Return a function that calls the module with other tensors; copies, in case the module works in place."""

    def run(*tensors: Tensor) -> Any:
        queue = iter(tensors)
        replaced = [next(queue).clone() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args]
        return module(*replaced, **kwargs)

    return run


def first_faulty(calls: Sequence[MeasuredCall], tol: float) -> MeasuredCall | None:
    """Return the first faulty leaf, or the innermost faulty parent that has no faulty child."""

    def faulty(call: MeasuredCall) -> bool:
        return call.error is not None and not call.error <= tol

    def has_faulty_child(parent: MeasuredCall) -> bool:
        prefix = f"{parent.name}." if parent.name else ""
        return any(faulty(c) and c is not parent and c.name.startswith(prefix) for c in calls)

    return next((c for c in calls if faulty(c) and (c.is_leaf or not has_faulty_child(c))), None)
