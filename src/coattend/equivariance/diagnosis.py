"""What a diagnosis says, and how it prints."""

from __future__ import annotations

import math
from dataclasses import dataclass

from coattend.equivariance.causes import Cause
from coattend.groups import FiniteGroup


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
        if self.fault is None:
            return f"equivariant to {self.group.name}: {self._largest}"
        name = self.fault.name or "the module itself"
        place = f"{name} ({self.fault.layer})"
        if self.fault.cause is Cause.NOT_FINITE:
            head = f"the outputs are not finite, so they are not equivariant to {self.group.name}"
            found = f"first layer that returns NaN or Inf: {place}"
        elif self.fault.cause is Cause.INTERPOLATION:
            exact = len(self.group.exact_elements)
            head = f"not equivariant to {self.group.name} beyond its {exact} exact elements: {self._largest}"
            found = f"first layer whose filters are interpolated: {place}"
        else:
            head = f"not equivariant to {self.group.name}: {self._largest}"
            found = f"first fault: {place}, error {self.fault.error:.1e} on its own"
        lines = [head, found, f"cause:  {self.fault.cause.value}", f"remedy: {self.fault.remedy}"]
        if self.layers:
            judged = [(report, report.error) for report in self.layers if report.error is not None]
            broken = [(report, error) for report, error in judged if not error <= self.tol]
            lines.append(
                f"layers, each judged alone on the input it got, over {len(self.group.exact_elements)} elements: "
                f"{len(judged) - len(broken)} sound, {len(self.layers) - len(judged)} not judged, {len(broken)} broken"
            )
            lines += [f"  {error:.1e}  {report.name} ({report.layer})" for report, error in broken]
        return "\n".join(lines)

    @property
    def _largest(self) -> str:
        worst = max(self.errors, key=lambda g: math.inf if math.isnan(self.errors[g]) else self.errors[g])
        return f"largest error {self.errors[worst]:.1e} ({self.group.describe(worst)}), tolerance {self.tol:.0e}"
