"""Find the layer that breaks equivariance, the cause, and what would mend it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from torch import Tensor, nn

from coattend.equivariance.calls import Call, first_guilty, record, recorded_calls
from coattend.equivariance.causes import Cause, Suspect, explain
from coattend.equivariance.diagnosis import Diagnosis, Fault, LayerReport
from coattend.equivariance.error import (
    check_arguments,
    check_content,
    equivariance_error,
    one_per_tensor,
    relative_error,
    tensors_in,
    tolerance,
)
from coattend.equivariance.fields import Field, Layout, candidate_fields, field_of, quotients_of
from coattend.equivariance.geometry import safe_sizes
from coattend.groups import FiniteGroup, Subgroup, get_group
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
    """Judge every layer of a module alone on the input it gets, and name the first that breaks equivariance.

    Works on any module. Layers whose code is in a parent's forward are found too: where all children are sound and the
    parent is not, the parent is named. Maps that travel with channels and poses folded into one axis are recognised by
    how they move; ``input_layout`` and ``output_layout`` say how the module's own input and outputs move where their
    shapes do not (:func:`equivariance_error`). Outputs that are not finite are a verdict of their own, and an input
    that holds one value only proves nothing and is refused.
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

    quotients = quotients_of(module, None, group)
    whole = field_of(x, group, quotients, "input", input_layout)
    with evaluating(module):
        calls = recorded_calls(module, x, group, whole)
        judge = _Judge(group, tol, quotients, whole, output_layout)
        for call in calls:
            call.error = judge.error_of(call)
        layers = tuple(LayerReport(c.name, type(c.module).__name__, c.error) for c in calls if c.is_leaf)
        guilty = first_guilty(calls, tol)
        if guilty is None:
            return Diagnosis(group, errors, tol, layers, _interpolation_fault(calls, errors, group))
        cause, remedy = explain(judge.suspect(guilty, calls), lambda: _size_advice(module, x))
    fault = Fault(guilty.name, type(guilty.module).__name__, guilty.error or 0.0, cause, remedy)
    return Diagnosis(group, errors, tol, layers, fault)


class _Judge:
    """Measures single calls."""

    def __init__(
        self,
        group: FiniteGroup,
        tol: float,
        quotients: dict[int, Subgroup],
        input_field: Field,
        output_layout: Layout | Sequence[Layout | None] | None,
    ) -> None:
        self.group, self.tol, self.quotients = group, tol, quotients
        self.input_field, self.output_layout = input_field, output_layout

    def error_of(self, call: Call) -> float | None:
        """The largest error over the exact elements, for the reading of the tensors that fits best."""
        readings = [self._layouts(x, position, call) for position, x in enumerate(call.inputs)]
        if not all(readings):
            return None
        errors = [self._error_as(call, fields) for fields in itertools.product(*readings)]
        return None if None in errors else min(error for error in errors if error is not None)

    def _error_as(self, call: Call, fields: Sequence[Field]) -> float | None:
        straight = list(tensors_in(call.run(*call.inputs)))
        if call.name == "":  # what leaves the whole module has one layout; inside, folded maps will do
            layouts = one_per_tensor(self.output_layout, len(straight))
            pairs = zip(straight, layouts, strict=True)
            readings = [[field_of(y, self.group, self.quotients, "output", layout)] for y, layout in pairs]
        else:
            readings = [candidate_fields(y, self.group, self.quotients) for y in straight]
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

    def suspect(self, call: Call, calls: Sequence[Call]) -> Suspect:
        """The call as the explanation needs it."""
        fields = tuple(self._layouts(x, position, call)[0] for position, x in enumerate(call.inputs))
        inside = (c for c in calls if c is not call and c.name.startswith(f"{call.name}." if call.name else ""))
        astray = (t for c in inside for i, t in enumerate(c.inputs) if self._as_it_moved(t, i, c) is None)
        return Suspect(call.module, call.inputs, fields, self.group, self.tol, call.run, next(astray, None))

    def _layouts(self, x: Tensor, position: int, call: Call) -> list[Field]:
        """The layout by which an input moved, or, where something before it went wrong, all it can be."""
        if call.name == "" and position == 0:
            return [self.input_field]
        moved_as = self._as_it_moved(x, position, call)
        return candidate_fields(x, self.group, self.quotients) if moved_as is None else [moved_as]

    def _as_it_moved(self, x: Tensor, position: int, call: Call) -> Field | None:
        """The layout that explains how this input moved with the image, if one does."""
        for candidate in candidate_fields(x, self.group, self.quotients):
            moves = (
                relative_error(moved[position], candidate.move(x, self.group, g))
                for g, moved in call.moved_inputs.items()
            )
            if all(error <= self.tol for error in moves):
                return candidate
        return None


def _not_finite_fault(module: nn.Module, x: Tensor) -> Fault | None:
    """The innermost call that makes NaN or Inf out of finite tensors, where the module returns some."""
    if all(_finite(y) for y in tensors_in(module(x))):
        return None
    if not _finite(x):
        remedy = "the input holds NaN or Inf; pass finite images."
        return Fault("", type(module).__name__, math.nan, Cause.NOT_FINITE, remedy)
    calls = record(module, x)
    for call in calls:
        starts = all(map(_finite, call.inputs)) and not all(map(_finite, tensors_in(call.run(*call.inputs))))
        call.error = math.nan if starts else 0.0
    guilty = first_guilty(calls, math.inf)
    assert guilty is not None  # the module itself is a call that started from a finite input
    spoiled = [
        name
        for name, t in itertools.chain(guilty.module.named_parameters(), guilty.module.named_buffers())
        if not _finite(t)
    ]
    remedy = (
        f"its {' and '.join(spoiled)} hold NaN or Inf; load or train the weights again."
        if spoiled
        else "its parameters are finite, so it overflows or divides by zero on this input; look at the input's scale."
    )
    return Fault(guilty.name, type(guilty.module).__name__, math.nan, Cause.NOT_FINITE, remedy)


def _finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())


def _interpolation_fault(calls: Sequence[Call], errors: dict[int, float], group: FiniteGroup) -> Fault | None:
    if group.is_exact:
        return None
    turned = [c for c in calls if isinstance(c.module, PoseConv2d) and not c.module.group.is_exact]
    call = (turned or list(calls))[0]
    exact = set(group.exact_elements)
    worst = max(error for g, error in errors.items() if g not in exact)
    approximate = (
        f"expected for angles that do not move pixels onto pixels: the {len(exact)} exact elements of {group.name} are "
        f"exact, the others are approximate with error {worst:.1e} for the module as a whole; "
    )
    if not turned:
        advice = "no layer interpolates its filters, so what is left is the interpolation of the measurement itself."
    else:
        advice = "5 x 5 kernels and smooth filters bring it down (docs/conventions.md has a table)."
        if any(c.module.interpolation == "bilinear" for c in turned):
            advice = f'interpolation="bicubic", {advice}'
    return Fault(call.name, type(call.module).__name__, worst, Cause.INTERPOLATION, approximate + advice)


def _size_advice(module: nn.Module, x: Tensor) -> str:
    sizes = safe_sizes(module, x)
    advice = "nearest exact input sizes: " + " and ".join(f"{h} x {w}" for h, w in sizes)
    option = getattr(module, "stride_remedy", None)  # the networks of coattend.models name theirs
    return (advice if sizes else "no input size nearby divides") + (f", or build it with {option}" if option else "")
