"""Measure how far a module is from commuting with a group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from coattend.equivariance.fields import Field, candidate_fields, quotients_of
from coattend.groups import FiniteGroup, Subgroup, get_group
from coattend.nn import evaluating

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def equivariance_error(
    module: nn.Module, x: Tensor, group: FiniteGroup | str, over: Iterable[int] | None = None
) -> dict[int, float]:
    """``{g: |f(g.x) - g.f(x)| / |f(x)|}`` for every element, in evaluation mode ([RH20] Eq. 1).

    Shapes tell how tensors move: five axes are a map (batch, channels, group, height, width), four an image, three
    (batch, channels, group) poses without positions, anything else must not change at all. A module may return
    several tensors; the largest error counts. ``over`` names the subgroup whose cosets a returned map is indexed by
    where no GroupPool in the module tells.

    Elements that need interpolation are measured inside the disc inscribed in the image, towards whose rim the input
    is faded out, so that what the error shows is the module and not the image's corners being turned out of the frame.
    """
    group = get_group(group)
    quotients = quotients_of(module, over, group)
    input_field = _field(x, group, quotients, "input")
    exact = set(group.exact_elements)
    with evaluating(module):
        straight = list(tensors_in(module(x)))
        faded = list(tensors_in(module(_fade(x)))) if len(exact) < group.order else []
        return {
            g: _largest_error(
                tensors_in(module(input_field.move(x if g in exact else _fade(x), group, g))),
                straight if g in exact else faded,
                group,
                g,
                quotients,
                g not in exact,
            )
            for g in group.elements
        }


def assert_equivariant(
    module: nn.Module,
    x: Tensor,
    group: FiniteGroup | str,
    tol: float | None = None,
    over: Iterable[int] | None = None,
) -> None:
    """Raise an AssertionError that lists the elements with which the module does not commute.

    ``tol`` is the largest relative error allowed; by default it follows the input's dtype (1e-12 in float64).
    """
    __tracebackhide__ = True
    group = get_group(group)
    tol = default_tolerance(x) if tol is None else tol
    errors = equivariance_error(module, x, group, over)
    broken = [f"  {group.describe(g)} (element {g}): {error:.1e}" for g, error in errors.items() if not error <= tol]
    if broken:
        raise AssertionError(
            f"{type(module).__name__} is not equivariant to {group.name}: relative error above {tol:.0e} for "
            f"{len(broken)} of {group.order} elements\n" + "\n".join(broken) + "\n"
            "coattend.diagnose(module, x, group) names the layer that breaks it."
        )


def default_tolerance(x: Tensor) -> float:
    """What rounding alone can amount to in a network of this dtype."""
    return TOLERANCE.get(x.dtype, TOLERANCE[torch.float32])


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """``|actual - expected| / |expected|``, infinite for shapes that differ and absolute where nothing is expected."""
    if actual.shape != expected.shape:
        return float("inf")
    actual, expected = actual.detach().to(torch.float64), expected.detach().to(torch.float64)
    size = torch.linalg.vector_norm(expected).item()
    difference = torch.linalg.vector_norm(actual - expected).item()
    return difference / size if size > 0 else difference


def tensors_in(output: Any) -> Iterator[Tensor]:
    """All tensors of a module's output, whatever containers they come in."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from tensors_in(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from tensors_in(value)


def _largest_error(
    moved: Iterable[Tensor],
    reference: list[Tensor],
    group: FiniteGroup,
    g: int,
    quotients: Mapping[int, Subgroup],
    inside_disc: bool,
) -> float:
    errors = []
    for actual, y in zip(moved, reference, strict=True):
        expected = _field(y, group, quotients, "output").move(y, group, g)
        if inside_disc:
            actual, expected = _fade(actual), _fade(expected)
        errors.append(relative_error(actual, expected))
    if not errors:
        raise ValueError("the module returned no tensor, so there is nothing to compare.")
    return max(errors)


def _field(x: Tensor, group: FiniteGroup, quotients: Mapping[int, Subgroup], role: str) -> Field:
    candidates = candidate_fields(x, group, quotients)
    if not candidates:
        raise ValueError(
            f"the {role} {tuple(x.shape)} has a group axis of {x.shape[2]}, but {group.name} has order {group.order}; "
            "pass the group the module was built over, or over=K if the axis holds the left cosets of a subgroup K."
        )
    return candidates[0]


def _fade(x: Tensor) -> Tensor:
    """Fade the last two axes out towards the rim of the inscribed disc."""
    if x.ndim < 4:
        return x
    height, width = x.shape[-2:]
    y = torch.arange(height, dtype=torch.float64, device=x.device) - (height - 1) / 2
    z = torch.arange(width, dtype=torch.float64, device=x.device) - (width - 1) / 2
    radius = torch.hypot(y[:, None], z[None, :]) / (min(height, width) / 2)
    window = torch.cos((2 * radius - 1).clamp(0, 1) * torch.pi / 2) ** 2  # 1 up to half the radius, 0 at the rim
    return x * window.to(x.dtype)
