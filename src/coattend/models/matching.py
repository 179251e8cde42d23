"""Widths with which a network over a group is as large as another one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

Match = Literal["params", "cost"]  # parameters, or multiply-adds of its convolutions for one image
Widths = tuple[int, ...]
STEPS = 8


def closest_widths(plain: Widths, size: Callable[[Widths], int], target: int) -> Widths:
    """Return widths in the proportions of ``plain``, rounded, whose size is closest to the target.

    ``size`` grows about as the square of the widths. Rounding every width by itself makes the steps small: a few per
    mille in networks of usual width.

    >>> closest_widths((64, 128), lambda widths: 8 * sum(w * w for w in widths), 64 * 64 + 128 * 128)
    (23, 45)
    """

    def scaled(factor: float) -> Widths:
        return tuple(max(1, round(width * factor)) for width in plain)

    sizes: dict[Widths, int] = {}
    factor = 0.25  # small, so that the first network is built quickly
    for _ in range(STEPS):
        widths = scaled(factor)
        if widths in sizes:
            break
        sizes[widths] = size(widths)
        factor *= math.sqrt(target / sizes[widths])  # filters have in x out numbers
    for step in (-1, 1):
        neighbour = scaled(factor + step / (3 * max(plain)))
        sizes[neighbour] = sizes.get(neighbour) or size(neighbour)
    return min(sizes, key=lambda widths: abs(sizes[widths] - target))
