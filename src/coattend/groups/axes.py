"""Correspondence between the coordinates of d-dimensional space and the axes of a tensor.

Coordinate i belongs to axis -1 - i. x runs along its axis, to the right; the others run against theirs, y up and z
towards the viewer, so that (x, y, z) is right-handed for a volume (depth, height, width).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NAMES = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}


def axis_names(dimension: int | None) -> tuple[str, ...]:
    """Return the names of the spatial axes of a tensor, those of images for a group without an action."""
    dimension = dimension or 2
    return NAMES.get(dimension) or tuple(f"axis {i}" for i in range(1, dimension + 1))


def directions(dimension: int) -> NDArray[np.float64]:
    """Return 1 for each coordinate that runs along its axis, and -1 for each that runs against it."""
    return np.where(np.arange(dimension) == 0, 1.0, -1.0)
