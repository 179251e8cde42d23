"""The taps of a filter: where they are, which of them a rotation keeps, and how exact elements permute them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coattend.groups.axes import directions
from coattend.groups.finite_group import Matrices


def tap_coordinates(kernel_size: int, dimension: int = 2) -> Matrices:
    """Return the centered coordinates (x, y, ...) of every tap, shape (taps, dimension)."""
    steps = np.arange(kernel_size) - (kernel_size - 1) / 2
    axes = np.meshgrid(*[steps] * dimension, indexing="ij")
    return np.stack([axis.ravel() for axis in reversed(axes)], axis=-1) * directions(dimension)


def taps_in_disc(kernel_size: int, dimension: int = 2) -> NDArray[np.bool_]:
    """Return which taps are inside the disc inscribed in the kernel: no rotation moves them out of it."""
    return np.linalg.norm(tap_coordinates(kernel_size, dimension), axis=-1) <= kernel_size / 2


def tap_permutation(matrix: Matrices, kernel_size: int) -> NDArray[np.int64]:
    """Return the tap of the base filter that an element moves onto each tap."""
    dimension = len(matrix)
    source = tap_coordinates(kernel_size, dimension) @ matrix  # rows are (g^-1 u)^T = u^T g, g being orthogonal
    indices = np.rint(source * directions(dimension) + (kernel_size - 1) / 2).astype(np.int64)
    return indices @ kernel_size ** np.arange(dimension)
