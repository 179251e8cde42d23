"""The result of a diagnosis, and how it prints."""

from __future__ import annotations

import math
from dataclasses import dataclass

from coattend.equivariance.causes import Cause
from coattend.groups import FiniteGroup


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
            first = f"first layer whose filters are interpolated: {layer}"
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
