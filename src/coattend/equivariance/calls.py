"""The calls of all layers inside a module, recorded while it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from coattend.equivariance.fields import Field
from coattend.groups import FiniteGroup


@dataclass
class Call:
    """A module with the tensors it was called with, for x and for every exact element's g.x."""

    name: str
    module: nn.Module
    inputs: tuple[Tensor, ...]
    run: Callable[..., Any]
    moved_inputs: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)
    error: float | None = None

    @property
    def is_leaf(self) -> bool:
        """Whether the module has no layers inside."""
        return next(self.module.children(), None) is None


def recorded_calls(module: nn.Module, x: Tensor, group: FiniteGroup, field: Field) -> list[Call]:
    """One pass for x, in which calls are recorded, and one per exact element to see how inputs really move."""
    calls = record(module, x)
    for g in group.exact_elements:
        for call, moved in zip(calls, record(module, field.move(x, group, g)), strict=True):
            call.moved_inputs[g] = moved.inputs
    return calls


def record(module: nn.Module, x: Tensor) -> list[Call]:
    """Every call with tensors during one pass, a parent before its children."""
    calls: list[Call] = []
    handles = []
    for name, child in module.named_modules():

        def hook(m: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], name: str = name) -> None:
            tensors = tuple(a.clone() for a in args if isinstance(a, Tensor) and a.is_floating_point())
            if tensors:
                calls.append(Call(name, m, tensors, _runner(m, args, kwargs)))

        handles.append(child.register_forward_pre_hook(hook, with_kwargs=True))
    try:
        module(x)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _runner(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
    """Call the module again with other tensors in the place of the first call's; copies, lest it works in place."""

    def run(*tensors: Tensor) -> Any:
        queue = iter(tensors)
        replaced = [next(queue).clone() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args]
        return module(*replaced, **kwargs)

    return run


def first_guilty(calls: Sequence[Call], tol: float) -> Call | None:
    """The first faulty leaf, or the innermost faulty parent none of whose children is faulty."""

    def faulty(call: Call) -> bool:
        return call.error is not None and not call.error <= tol

    def has_faulty_child(parent: Call) -> bool:
        prefix = f"{parent.name}." if parent.name else ""
        return any(faulty(c) and c is not parent and c.name.startswith(prefix) for c in calls)

    return next((c for c in calls if faulty(c) and (c.is_leaf or not has_faulty_child(c))), None)
