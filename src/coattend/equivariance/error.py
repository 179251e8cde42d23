"""Measure how far a module is from commuting with a group."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coattend.equivariance.fields import Field, Layout, field_of, other_layouts
from coattend.groups import FiniteGroup, get_group
from coattend.nn.observe import evaluating

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def equivariance_error(
    module: nn.Module,
    x: Tensor,
    group: FiniteGroup | str,
    over: Iterable[int] | None = None,
    *,
    input_layout: Layout | None = None,
    output_layout: Layout | Sequence[Layout | None] | None = None,
) -> dict[int, float]:
    """Return ``{g: |f(g.x) - g.f(x)| / |f(x)|}`` for every element, in evaluation mode ([RH20] Eq. 1).

    How tensors move is inferred from their shapes: five axes are a map (batch, channels, group, height, width), four an
    image, three (batch, channels, group) poses without positions, anything else must not change at all. For an action
    of dimension d, maps have 3 + d axes and images 2 + d. Where that is not meant, ``input_layout`` and
    ``output_layout`` name the layout: "map", "image", "poses", "invariant", or, for a map whose channel and
    group axes are one, "channel-major fold" or "pose-major fold". A module may return several tensors; the largest
    error counts, and ``output_layout`` may be a sequence with one entry per tensor. ``over`` names the subgroup whose
    cosets a returned map is indexed by, which is otherwise taken from the GroupPool layers of the module.

    For elements that need interpolation, the input is blurred by 1.5 pixels and faded out towards the rim of the disc
    inscribed in the image, and outputs with positions are compared inside that disc after the same blur. The error then
    is that of the module, not that of interpolating fine detail or of corners outside of the frame.

    An output that is not finite has the error NaN.
    """
    check_arguments(module, x)
    group = get_group(group)
    exact = set(group.exact_elements)
    if len(exact) < group.order and not x.is_floating_point():
        raise ValueError(
            f"{group.name} turns tensors by interpolation, for which {x.dtype} is too coarse; pass floats."
        )
    others = other_layouts(module, over, group)
    input_field = field_of(x, group, others, "input", input_layout)
    smooth = x if len(exact) == group.order else smoothed_input(x, input_field)

    def outputs(images: Tensor) -> list[Tensor]:
        tensors = list(tensors_in(module(images)))
        if not tensors:
            raise ValueError("the module returned no tensor, so there is nothing to compare.")
        return tensors

    with evaluating(module):
        straight = outputs(x)
        blurred = straight if smooth is x else outputs(smooth)
        layouts = one_per_tensor(output_layout, len(straight))
        fields = [field_of(y, group, others, "output", layout) for y, layout in zip(straight, layouts, strict=True)]

        def error(g: int) -> float:
            moved = outputs(input_field.move(x if g in exact else smooth, group, g))
            sides = zip(moved, straight if g in exact else blurred, fields, strict=True)
            return _largest(_error(actual, y, field, g) for actual, y, field in sides)

        def _error(actual: Tensor, y: Tensor, field: Field, g: int) -> float:
            expected = field.move(y, group, g)
            if g not in exact:
                actual, expected = compared_part(actual, field), compared_part(expected, field)
            return relative_error(actual, expected)

        return {g: error(g) for g in group.elements}


def assert_equivariant(
    module: nn.Module,
    x: Tensor,
    group: FiniteGroup | str,
    tol: float | None = None,
    over: Iterable[int] | None = None,
    *,
    input_layout: Layout | None = None,
    output_layout: Layout | Sequence[Layout | None] | None = None,
) -> None:
    """Raise an AssertionError that lists the elements with which the module does not commute.

    ``tol`` is the largest relative error allowed; by default it follows the input's dtype (1e-12 in float64). The other
    arguments are those of :func:`equivariance_error`. A constant input proves nothing and is refused.
    """
    __tracebackhide__ = True
    check_arguments(module, x)
    check_content(x)
    group = get_group(group)
    tol = tolerance(x, tol)
    errors = equivariance_error(module, x, group, over, input_layout=input_layout, output_layout=output_layout)
    broken = [f"  {group.describe(g)} (element {g}): {error:.1e}" for g, error in errors.items() if not error <= tol]
    if broken:
        raise AssertionError(
            f"{type(module).__name__} is not equivariant to {group.name}: relative error above {tol:.0e} for "
            f"{len(broken)} of {group.order} elements\n" + "\n".join(broken) + "\n"
            "coattend.diagnose(module, x, group) names the layer that breaks it."
        )


def check_arguments(module: object, x: object) -> None:
    """Require a module and a tensor that is not empty."""
    if not isinstance(module, nn.Module):
        raise ValueError(f"expected a torch.nn.Module to measure, got {type(module).__name__}.")
    if not isinstance(x, Tensor):
        raise ValueError(f"expected a tensor as the module's input, got {type(x).__name__}.")
    if x.numel() == 0:
        raise ValueError(f"an input of shape {tuple(x.shape)} is empty and proves nothing; pass at least one image.")


def check_content(x: Tensor) -> None:
    """Require an input that is not constant: no element would change it, whatever the module does."""
    first = x.flatten()[0]
    if bool((x == first).all()):
        raise ValueError(
            f"the input is constant, {first.item():g}, and proves nothing: most modules commute on it, equivariant or "
            "not; pass an image with content, for example torch.randn(2, channels, height, width)."
        )


def tolerance(x: Tensor, tol: float | None) -> float:
    """Return the relative error allowed: the given one, else what rounding amounts to in a network of this dtype."""
    if tol is None:
        return TOLERANCE.get(x.dtype, TOLERANCE[torch.float32])
    if isinstance(tol, bool) or not isinstance(tol, (int, float)) or not 0 <= tol < math.inf:
        raise ValueError(f"tol must be the largest relative error allowed, a number of at least 0, got {tol!r}.")
    return tol


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return ``|actual - expected| / |expected|``; infinite for unequal shapes, absolute where expected is 0."""
    if actual.shape != expected.shape:
        return float("inf")
    actual, expected = actual.detach().to(torch.float64), expected.detach().to(torch.float64)
    size = torch.linalg.vector_norm(expected).item()
    difference = torch.linalg.vector_norm(actual - expected).item()
    return difference / size if size > 0 else difference


def tensors_in(output: Any) -> Iterator[Tensor]:
    """Yield all tensors of a module's output, from containers of any kind."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from tensors_in(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from tensors_in(value)


def one_per_tensor(layout: Layout | Sequence[Layout | None] | None, tensors: int) -> Sequence[Layout | None]:
    """Return the layout of every tensor that a module returned."""
    if layout is None or isinstance(layout, str):
        return [layout] * tensors
    if len(layout) != tensors:
        raise ValueError(f"output_layout names {len(layout)} layouts, but the module returned {tensors} tensors.")
    return layout


def _largest(errors: Iterable[float]) -> float:
    """Return the largest, or NaN if one of them is; ``max`` may ignore NaN."""
    values = list(errors)
    return math.nan if any(map(math.isnan, values)) else max(values)


BLUR = 1.5  # standard deviation in pixels; ReLU over C8 and C32 then measures 0.01, without the blur 0.3


def smoothed_input(x: Tensor, field: Field) -> Tensor:
    """Return the input blurred, then faded out towards the rim of the inscribed disc.

    It holds no detail that the grid is too coarse to turn, so that a moved input has no artefacts of interpolation.
    """
    return _faded(_blurred(x)) if field.has_positions(x) else x


def compared_part(y: Tensor, field: Field) -> Tensor:
    """Return the part of an output that interpolation moves accurately: inside the inscribed disc, blurred.

    The function is linear and applied to both sides of a comparison, so that what commutes with interpolation is
    measured as exact.
    """
    return _blurred(_faded(y)) if field.has_positions(y) else y


def _faded(x: Tensor) -> Tensor:
    height, width = x.shape[-2:]
    y = torch.arange(height, dtype=torch.float64, device=x.device) - (height - 1) / 2
    z = torch.arange(width, dtype=torch.float64, device=x.device) - (width - 1) / 2
    radius = torch.hypot(y[:, None], z[None, :]) / (min(height, width) / 2)
    window = torch.cos((2 * radius - 1).clamp(0, 1) * torch.pi / 2) ** 2  # 1 up to half the radius, 0 at the rim
    return x * window.to(x.dtype)


def _blurred(x: Tensor) -> Tensor:
    reach = math.ceil(3 * BLUR)
    steps = torch.arange(-reach, reach + 1, dtype=torch.float64, device=x.device)
    bell = torch.exp(-((steps / BLUR) ** 2) / 2)
    weights = (bell / bell.sum()).to(torch.promote_types(x.dtype, torch.float32))
    planes = x.reshape(-1, 1, *x.shape[-2:]).to(weights.dtype)
    padded = F.pad(planes, (reach,) * 4, mode="replicate")
    blurred = F.conv2d(F.conv2d(padded, weights[None, None, :, None]), weights[None, None, None, :])
    return blurred.reshape(x.shape).to(x.dtype)
