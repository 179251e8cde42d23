"""Find the layer that breaks equivariance, the cause, and what would mend it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from coattend.equivariance.causes import Cause, Suspect, explain
from coattend.equivariance.error import default_tolerance, equivariance_error, relative_error, tensors_in
from coattend.equivariance.fields import Field, candidate_fields, quotients_of
from coattend.equivariance.geometry import safe_sizes
from coattend.groups import FiniteGroup, Subgroup, get_group
from coattend.nn import PoseConv2d, evaluating


@dataclass(frozen=True)
class LayerReport:
    """One call of one layer, judged alone on the input it got; no error where its tensors fit no known layout."""

    name: str
    layer: str
    error: float | None


@dataclass(frozen=True)
class Fault:
    """The first layer that breaks equivariance."""

    name: str
    layer: str
    error: float
    cause: Cause
    remedy: str


@dataclass(frozen=True)
class Diagnosis:
    """What :func:`diagnose` found; prints as a short report."""

    group: FiniteGroup
    errors: dict[int, float]
    tol: float
    layers: tuple[LayerReport, ...]
    fault: Fault | None

    @property
    def is_equivariant(self) -> bool:
        """Whether the module as a whole commutes with every element."""
        return self.fault is None

    def __str__(self) -> str:
        worst = max(self.errors, key=lambda g: self.errors[g])
        lines = [
            f"{'equivariant' if self.is_equivariant else 'not equivariant'} to {self.group.name}: largest error "
            f"{self.errors[worst]:.1e} ({self.group.describe(worst)}), tolerance {self.tol:.0e}"
        ]
        if self.fault is not None:
            name = self.fault.name or "the module itself"
            lines += [
                f"first fault: {name} ({self.fault.layer}), error {self.fault.error:.1e} on its own",
                f"cause:  {self.fault.cause.value}",
                f"remedy: {self.fault.remedy}",
            ]
            judged = [(report, report.error) for report in self.layers if report.error is not None]
            broken = [(report, error) for report, error in judged if not error <= self.tol]
            lines.append(
                f"layers, each judged alone on the input it got: {len(judged) - len(broken)} sound, "
                f"{len(self.layers) - len(judged)} not judged, {len(broken)} broken"
            )
            lines += [f"  {error:.1e}  {report.name} ({report.layer})" for report, error in broken]
        return "\n".join(lines)


def diagnose(module: nn.Module, x: Tensor, group: FiniteGroup | str, tol: float | None = None) -> Diagnosis:
    """Judge every layer of a module alone on the input it gets, and name the first that breaks equivariance.

    Works on any module. Layers whose code lies in a parent's forward are found too: where all children are sound and
    the parent is not, the parent is named. Maps that travel with channels and poses folded into one axis are
    recognised by how they move.
    """
    group = get_group(group)
    tol = default_tolerance(x) if tol is None else tol
    errors = equivariance_error(module, x, group)
    if all(error <= tol for error in errors.values()):
        return Diagnosis(group, errors, tol, (), None)

    with evaluating(module):
        calls = _recorded_calls(module, x, group)
        judge = _Judge(group, tol, quotients_of(module, None, group))
        for call in calls:
            call.error = judge.error_of(call)
        layers = tuple(LayerReport(c.name, type(c.module).__name__, c.error) for c in calls if c.is_leaf)
        guilty = _first_guilty(calls, tol)
        if guilty is None:
            return Diagnosis(group, errors, tol, layers, _interpolation_fault(calls, errors, group))
        cause, remedy = explain(judge.suspect(guilty, calls), lambda: _size_advice(module, x))
    fault = Fault(guilty.name, type(guilty.module).__name__, guilty.error or 0.0, cause, remedy)
    return Diagnosis(group, errors, tol, layers, fault)


@dataclass
class _Call:
    """A module with the tensors it was called with, for x and for every exact element's g.x."""

    name: str
    module: nn.Module
    inputs: tuple[Tensor, ...]
    run: Callable[..., Any]
    moved_inputs: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)
    error: float | None = None

    @property
    def is_leaf(self) -> bool:
        return next(self.module.children(), None) is None


def _recorded_calls(module: nn.Module, x: Tensor, group: FiniteGroup) -> list[_Call]:
    """One pass for x, in which calls are recorded, and one per exact element to see how inputs really move."""
    calls = _record(module, x)
    (image,) = candidate_fields(x, group, {})[:1]
    for g in group.exact_elements:
        for call, moved in zip(calls, _record(module, image.move(x, group, g)), strict=True):
            call.moved_inputs[g] = moved.inputs
    return calls


def _record(module: nn.Module, x: Tensor) -> list[_Call]:
    calls: list[_Call] = []
    handles = []
    for name, child in module.named_modules():

        def hook(m: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], name: str = name) -> None:
            tensors = tuple(a.clone() for a in args if isinstance(a, Tensor) and a.is_floating_point())
            if tensors:
                calls.append(_Call(name, m, tensors, _runner(m, args, kwargs)))

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


class _Judge:
    """Measures single calls."""

    def __init__(self, group: FiniteGroup, tol: float, quotients: dict[int, Subgroup]) -> None:
        self.group, self.tol, self.quotients = group, tol, quotients

    def error_of(self, call: _Call) -> float | None:
        """The largest error over the exact elements, for the reading of the tensors that fits best."""
        readings = [self._layouts(x, position, call) for position, x in enumerate(call.inputs)]
        if not all(readings):
            return None
        errors = [self._error_as(call, fields) for fields in itertools.product(*readings)]
        return None if None in errors else min(error for error in errors if error is not None)

    def _error_as(self, call: _Call, fields: Sequence[Field]) -> float | None:
        straight = list(tensors_in(call.run(*call.inputs)))
        # What leaves the whole module has to follow the documented layout; inside, folded maps will do.
        most = 1 if call.name == "" else None
        readings = [candidate_fields(y, self.group, self.quotients)[:most] for y in straight]
        if not straight or not all(readings):
            return None
        worst = [[0.0] * len(candidates) for candidates in readings]
        for g in self.group.exact_elements:
            inputs = [f.move(t, self.group, g) for f, t in zip(fields, call.inputs, strict=True)]
            moved = list(tensors_in(call.run(*inputs)))
            for tensor, (y, candidates) in enumerate(zip(straight, readings, strict=True)):
                for i, reading in enumerate(candidates):
                    error = relative_error(moved[tensor], reading.move(y, self.group, g))
                    worst[tensor][i] = max(worst[tensor][i], error)
        return max(min(candidates) for candidates in worst)

    def suspect(self, call: _Call, calls: Sequence[_Call]) -> Suspect:
        """The call as the explanation needs it."""
        fields = tuple(self._layouts(x, position, call)[0] for position, x in enumerate(call.inputs))
        inside = (c for c in calls if c is not call and c.name.startswith(f"{call.name}." if call.name else ""))
        astray = (t for c in inside for i, t in enumerate(c.inputs) if self._as_it_moved(t, i, c) is None)
        return Suspect(call.module, call.inputs, fields, self.group, self.tol, call.run, next(astray, None))

    def _layouts(self, x: Tensor, position: int, call: _Call) -> list[Field]:
        """The layout by which an input moved, or, where something before it went wrong, all it can be."""
        moved_as = self._as_it_moved(x, position, call)
        return candidate_fields(x, self.group, self.quotients) if moved_as is None else [moved_as]

    def _as_it_moved(self, x: Tensor, position: int, call: _Call) -> Field | None:
        """The layout that explains how this input moved with the image, if one does."""
        for candidate in candidate_fields(x, self.group, self.quotients):
            moves = (
                relative_error(moved[position], candidate.move(x, self.group, g))
                for g, moved in call.moved_inputs.items()
            )
            if all(error <= self.tol for error in moves):
                return candidate
        return None


def _first_guilty(calls: Sequence[_Call], tol: float) -> _Call | None:
    """The first faulty leaf, or the innermost faulty parent none of whose children is faulty."""

    def faulty(call: _Call) -> bool:
        return call.error is not None and not call.error <= tol

    def has_faulty_child(parent: _Call) -> bool:
        prefix = f"{parent.name}." if parent.name else ""
        return any(faulty(c) and c is not parent and c.name.startswith(prefix) for c in calls)

    return next((c for c in calls if faulty(c) and (c.is_leaf or not has_faulty_child(c))), None)


def _interpolation_fault(calls: Sequence[_Call], errors: dict[int, float], group: FiniteGroup) -> Fault | None:
    if group.is_exact:
        return None
    turned = [c for c in calls if isinstance(c.module, PoseConv2d) and not c.module.group.is_exact]
    call = (turned or list(calls))[0]
    exact = set(group.exact_elements)
    worst = max(error for g, error in errors.items() if g not in exact)
    remedy = (
        f"expected for angles that do not move pixels onto pixels: the {len(exact)} exact elements of {group.name} are "
        f"exact, the others are approximate with error {worst:.1e} for the module as a whole; larger kernels, "
        'interpolation="bicubic" and smooth filters bring it down (docs/conventions.md has a table).'
    )
    return Fault(call.name, type(call.module).__name__, worst, Cause.INTERPOLATION, remedy)


def _size_advice(module: nn.Module, x: Tensor) -> str:
    sizes = safe_sizes(module, x)
    if not sizes:
        return "no input size nearby divides"
    return "nearest exact input sizes: " + " and ".join(f"{h} x {w}" for h, w in sizes)
