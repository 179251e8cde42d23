"""Widths with which a network over a group is as large as another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

Match = Literal["params", "cost"]  # parameters, or multiply-adds of its convolutions for one image
Widths = tuple[int, ...]


def closest_widths(plain: Widths, size: Callable[[Widths], int], target: int) -> Widths:
    """Return widths in the proportions of ``plain``, rounded, whose size is closest to the target.

    ``size`` grows with the widths. Rounding every width by itself makes the steps small: a few per mille in networks
    of usual width.

    >>> closest_widths((64, 128), lambda widths: 8 * sum(w * w for w in widths), 64 * 64 + 128 * 128)
    (23, 45)
    """

    def scaled(factor: float) -> Widths:
        return tuple(max(1, round(width * factor)) for width in plain)

    low, high = 0.0, 1.0
    while size(scaled(high)) < target and scaled(high) != scaled(2 * high) and high < 64:
        high *= 2
    candidates = {scaled(high): size(scaled(high))}
    while scaled(low) != scaled(high) and high - low > 1 / (4 * max(plain)):
        middle = (low + high) / 2
        widths = scaled(middle)
        candidates[widths] = candidates.get(widths) or size(widths)
        low, high = (middle, high) if candidates[widths] < target else (low, middle)
    return min(candidates, key=lambda widths: abs(candidates[widths] - target))
