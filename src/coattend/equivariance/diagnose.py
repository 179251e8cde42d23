"""Find the layer that breaks equivariance, the cause, and the remedy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from coattend.equivariance.calls import MeasuredCall, first_faulty, record, recorded_calls
from coattend.equivariance.causes import Cause, FaultyLayer, explain
from coattend.equivariance.error import (
    check_arguments,
    check_content,
    equivariance_error,
    one_per_tensor,
    relative_error,
    tensors_in,
    tolerance,
)
from coattend.equivariance.fields import Field, Layout, OtherLayouts, candidate_fields, field_of, other_layouts
from coattend.equivariance.geometry import safe_sizes
from coattend.groups import FiniteGroup, get_group
from coattend.nn import PoseConv2d
from coattend.nn.observe import evaluating


def diagnose(
    module: nn.Module,
    x: Tensor,
    group: FiniteGroup | str,
    tol: float | None = None,
    *,
    input_layout: Layout | None = None,
    output_layout: Layout | Sequence[Layout | None] | None = None,
) -> Diagnosis:
    """Measure every layer of a module on the input that it receives, and name the first that breaks equivariance.

    Works on any module. Where all children are equivariant and the parent is not, the parent is named, because the
    fault is in its forward. Maps whose channels and poses are folded into one axis are recognized by how they move;
    ``input_layout`` and ``output_layout`` name the layouts of the module's own input and outputs where their shapes do
    not determine them (:func:`equivariance_error`). Outputs that are not finite are reported as such, and a constant
    input proves nothing and is refused.
    """
    check_arguments(module, x)
    check_content(x)
    group = get_group(group)
    tol = tolerance(x, tol)
    errors = equivariance_error(module, x, group, input_layout=input_layout, output_layout=output_layout)
    with evaluating(module):
        not_finite = _not_finite_fault(module, x)
    if not_finite is not None:
        return Diagnosis(group, errors, tol, (), not_finite)
    if all(error <= tol for error in errors.values()):
        return Diagnosis(group, errors, tol, (), None)

    others = other_layouts(module, None, group)
    whole = field_of(x, group, others, "input", input_layout)
    with evaluating(module):
        calls = recorded_calls(module, x, group, whole)
        errors_of_calls = _CallErrors(group, tol, others, whole, output_layout)
        for call in calls:
            call.error = errors_of_calls.error_of(call)
        layers = tuple(LayerReport(c.name, type(c.module).__name__, c.error) for c in calls if c.is_leaf)
        faulty = first_faulty(calls, tol)
        if faulty is None:
            return Diagnosis(group, errors, tol, layers, _interpolation_fault(calls, errors, group))
        cause, remedy = explain(errors_of_calls.faulty_layer(faulty, calls), lambda: _size_advice(module, x))
    fault = Fault(faulty.name, type(faulty.module).__name__, faulty.error or 0.0, cause, remedy)
    return Diagnosis(group, errors, tol, layers, fault)


class _CallErrors:
    """Errors of single calls."""

    def __init__(
        self,
        group: FiniteGroup,
        tol: float,
        others: OtherLayouts,
        input_field: Field,
        output_layout: Layout | Sequence[Layout | None] | None,
    ) -> None:
        self.group, self.tol, self.others = group, tol, others
        self.input_field, self.output_layout = input_field, output_layout

    def error_of(self, call: MeasuredCall) -> float | None:
        """Return the largest error over the exact elements, for the layouts of the tensors that fit best."""
        readings = [self._layouts(x, position, call) for position, x in enumerate(call.inputs)]
        if not all(readings):
            return None
        errors = [self._error_as(call, fields) for fields in itertools.product(*readings)]
        return None if None in errors else min(error for error in errors if error is not None)

    def _error_as(self, call: MeasuredCall, fields: Sequence[Field]) -> float | None:
        straight = list(tensors_in(call.run(*call.inputs)))
        if call.name == "":  # outputs of the whole module have one layout; inside, maps may be folded
            layouts = one_per_tensor(self.output_layout, len(straight))
            pairs = zip(straight, layouts, strict=True)
            readings = [[field_of(y, self.group, self.others, "output", layout)] for y, layout in pairs]
        else:
            readings = [candidate_fields(y, self.group, self.others) for y in straight]
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

    def faulty_layer(self, call: MeasuredCall, calls: Sequence[MeasuredCall]) -> FaultyLayer:
        """Return a faulty call with what :func:`explain` needs."""
        fields = tuple(self._layouts(x, position, call)[0] for position, x in enumerate(call.inputs))
        inside = (c for c in calls if c is not call and c.name.startswith(f"{call.name}." if call.name else ""))
        unmatched = (t for c in inside for i, t in enumerate(c.inputs) if self._as_it_moved(t, i, c) is None)
        return FaultyLayer(call.module, call.inputs, fields, self.group, self.tol, call.run, next(unmatched, None))

    def _layouts(self, x: Tensor, position: int, call: MeasuredCall) -> list[Field]:
        """Return the layout by which an input moved, or, after a fault, all that it can have."""
        if call.name == "" and position == 0:
            return [self.input_field]
        moved_as = self._as_it_moved(x, position, call)
        return candidate_fields(x, self.group, self.others) if moved_as is None else [moved_as]

    def _as_it_moved(self, x: Tensor, position: int, call: MeasuredCall) -> Field | None:
        """Return the layout by which an input moved with the image, or None."""
        for candidate in candidate_fields(x, self.group, self.others):
            moves = (
                relative_error(moved[position], candidate.move(x, self.group, g))
                for g, moved in call.moved_inputs.items()
            )
            if all(error <= self.tol for error in moves):
                return candidate
        return None


def _not_finite_fault(module: nn.Module, x: Tensor) -> Fault | None:
    """Return the innermost call that returns NaN or Inf for finite tensors, or None if the module returns neither."""
    if all(_finite(y) for y in tensors_in(module(x))):
        return None
    if not _finite(x):
        remedy = "the input holds NaN or Inf; pass finite images."
        return Fault("", type(module).__name__, math.nan, Cause.NOT_FINITE, remedy)
    calls = record(module, x)
    for call in calls:
        starts = all(map(_finite, call.inputs)) and not all(map(_finite, tensors_in(call.run(*call.inputs))))
        call.error = math.nan if starts else 0.0
    faulty = first_faulty(calls, math.inf)
    assert faulty is not None  # the module itself is a call that started from a finite input
    not_finite = [
        name
        for name, t in itertools.chain(faulty.module.named_parameters(), faulty.module.named_buffers())
        if not _finite(t)
    ]
    remedy = (
        f"its {' and '.join(not_finite)} hold NaN or Inf; reload or retrain the weights."
        if not_finite
        else "its parameters are finite, so it overflows or divides by zero on this input; check the input's scale."
    )
    return Fault(faulty.name, type(faulty.module).__name__, math.nan, Cause.NOT_FINITE, remedy)


def _finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())


def _interpolation_fault(calls: Sequence[MeasuredCall], errors: dict[int, float], group: FiniteGroup) -> Fault | None:
    if group.is_exact:
        return None
    turned = [c for c in calls if isinstance(c.module, PoseConv2d) and not c.module.group.is_exact]
    layers = [c.module for c in turned if isinstance(c.module, PoseConv2d)]
    call = (turned or list(calls))[0]
    exact = set(group.exact_elements)
    worst = max(error for g, error in errors.items() if g not in exact)
    approximate = (
        f"expected for angles that do not move pixels onto pixels: {len(exact)} elements of {group.name} are exact, "
        f"the others approximate, with error {worst:.1e} for the module as a whole; "
    )
    if not layers:
        advice = "no layer turns filters, so this is the error of the interpolation in the measurement itself."
    else:
        steerable = [] if all(layer.is_steerable for layer in layers) else ['filters="steerable"']
        larger = ["5 x 5 kernels"] if any(layer.kernel_size < 5 for layer in layers) else []
        remedies = ", ".join([*steerable, *larger])
        advice = f"{remedies}{' and ' * bool(remedies)}smoother images reduce it (docs/conventions.md has a table)."
    return Fault(call.name, type(call.module).__name__, worst, Cause.INTERPOLATION, approximate + advice)


def _size_advice(module: nn.Module, x: Tensor) -> str:
    sizes = safe_sizes(module, x)
    advice = "nearest exact input sizes: " + " and ".join(f"{h} x {w}" for h, w in sizes)
    option = getattr(module, "stride_remedy", None)  # the networks of coattend.models name theirs
    return (advice if sizes else "no input size nearby is exact") + (f", or build it with {option}" if option else "")


@dataclass(frozen=True)
class LayerReport:
    """The error of one call of a layer on the input that it received; None where its tensors fit no known layout."""

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
    """The result of :func:`diagnose`; prints as a short report."""

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
        if self.fault is None:
            return f"equivariant to {self.group.name}: {self._largest}"
        name = self.fault.name or "the module itself"
        layer = f"{name} ({self.fault.layer})"
        if self.fault.cause is Cause.NOT_FINITE:
            head = f"the outputs are not finite, so they are not equivariant to {self.group.name}"
            first = f"first layer that returns NaN or Inf: {layer}"
        elif self.fault.cause is Cause.INTERPOLATION:
            exact = len(self.group.exact_elements)
            head = f"not equivariant to {self.group.name} beyond its {exact} exact elements: {self._largest}"
            first = f"first layer whose filters are turned by other angles: {layer}"
        else:
            head = f"not equivariant to {self.group.name}: {self._largest}"
            first = f"first fault: {layer}, error {self.fault.error:.1e} on its own"
        lines = [head, first, f"cause:  {self.fault.cause.value}", f"remedy: {self.fault.remedy}"]
        if self.layers:
            measured = [(report, report.error) for report in self.layers if report.error is not None]
            broken = [(report, error) for report, error in measured if not error <= self.tol]
            lines.append(
                f"layers, each measured on the input that it received, over {len(self.group.exact_elements)} elements: "
                f"{len(measured) - len(broken)} equivariant, {len(broken)} not, "
                f"{len(self.layers) - len(measured)} not measured"
            )
            lines += [f"  {error:.1e}  {report.name} ({report.layer})" for report, error in broken]
        return "\n".join(lines)

    @property
    def _largest(self) -> str:
        worst = max(self.errors, key=lambda g: math.inf if math.isnan(self.errors[g]) else self.errors[g])
        return f"largest error {self.errors[worst]:.1e} ({self.group.describe(worst)}), tolerance {self.tol:.0e}"
