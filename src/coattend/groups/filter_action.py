"""How a group element moves a filter: one linear map per element and kernel size.

Elements that move pixels onto pixels, such as quarter turns and flips, permute the taps. Others interpolate inside the
disc inscribed in the kernel, outside of which a turned filter would be cut off.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coattend.groups.axes import directions
from coattend.groups.axioms import whole_number
from coattend.groups.finite_group import FiniteGroup, Matrices
from coattend.groups.named import get_group

Interpolation = Literal["bilinear", "bicubic"]
LARGEST_TABLE = 2**27  # entries, a gigabyte


def filter_turns(
    group: FiniteGroup | str,
    kernel_size: int,
    interpolation: Interpolation = "bicubic",
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return the maps that move a filter of size kernel_size along every spatial axis through all poses of the group.

    A filter has ``kernel_size**d`` taps for an action of dimension d. For an exact group the maps are integers
    (order, taps), tap p of the filter in pose g being tap ``turns[g, p]`` of the base filter. Otherwise they are
    numbers (order, taps, taps) of type ``dtype``, by default torch's, the filter in pose g being ``turns[g] @ base``.
    """
    if interpolation not in get_args(Interpolation):
        raise ValueError(f"interpolation must be one of {get_args(Interpolation)}, got {interpolation!r}.")
    group, size = get_group(group), whole_number(kernel_size)
    if size is None or size < 1:
        raise ValueError(f"kernel_size must be a whole number of at least 1, got {kernel_size!r}.")
    if group.dimension is None:
        raise ValueError(
            f"{group.name} is a bare table: it does not say how its elements move a filter. Pass FiniteGroup(table, "
            "planar=...) with an orthogonal 2 x 2 matrix per element, or use cyclic(n) or dihedral(n)."
        )
    taps = size**group.dimension
    entries = group.order * taps ** (1 if group.is_exact else 2)
    if entries > LARGEST_TABLE:
        raise ValueError(
            f"a {' x '.join([str(size)] * group.dimension)} kernel in {group.order} poses needs a table of {entries} "
            f"numbers, more than {LARGEST_TABLE}; use a smaller kernel or a smaller group."
        )
    table = _turn_table(group, size, interpolation)
    return torch.tensor(table) if group.is_exact else torch.tensor(table, dtype=dtype or torch.get_default_dtype())


@functools.lru_cache(maxsize=256)  # a deep network asks for the same few tables in every layer
def _turn_table(group: FiniteGroup, kernel_size: int, interpolation: Interpolation) -> NDArray[Any]:
    assert group.action is not None
    if group.is_exact:
        permutations = np.stack([_tap_permutation(m, kernel_size) for m in group.action])
        permutations.setflags(write=False)
        return permutations

    # Each right coset H g of the exact subgroup H is interpolated once and then permuted, so that turns by H commute
    # with the layer bit for bit in every precision, whatever the rounding of the interpolation weights.
    taps = kernel_size ** len(group.action[0])
    turns = np.empty((group.order, taps, taps))
    for coset in group.right_cosets(group.exact_elements):
        representative = coset[0]
        interpolated = _interpolation_matrix(group.action[representative], kernel_size, interpolation)
        for h in group.exact_elements:
            turns[group.product[h, representative]] = interpolated[_tap_permutation(group.action[h], kernel_size)]
    turns.setflags(write=False)
    return turns


def _coordinates(kernel_size: int, dimension: int) -> Matrices:
    """Return the centered coordinates (x, y, ...) of every tap, shape (taps, dimension)."""
    steps = np.arange(kernel_size) - (kernel_size - 1) / 2
    axes = np.meshgrid(*[steps] * dimension, indexing="ij")
    return np.stack([axis.ravel() for axis in reversed(axes)], axis=-1) * directions(dimension)


def _tap_permutation(matrix: Matrices, kernel_size: int) -> NDArray[np.int64]:
    dimension = len(matrix)
    source = _coordinates(kernel_size, dimension) @ matrix  # rows are (g^-1 u)^T = u^T g, g being orthogonal
    indices = np.rint(source * directions(dimension) + (kernel_size - 1) / 2).astype(np.int64)
    return indices @ kernel_size ** np.arange(dimension)


def _interpolation_matrix(matrix: Matrices, kernel_size: int, interpolation: Interpolation) -> Matrices:
    taps = _coordinates(kernel_size, len(matrix))
    distance = (taps @ matrix)[:, None, :] - taps[None, :, :]  # target tap, base tap, axis
    kernel = _linear if interpolation == "bilinear" else _cubic
    weights = kernel(distance).prod(axis=-1)
    inside = np.linalg.norm(taps, axis=-1) <= kernel_size / 2
    return weights * inside[:, None] * inside[None, :]


def _linear(distance: Matrices) -> Matrices:
    return np.maximum(0, 1 - np.abs(distance))


def _cubic(distance: Matrices) -> Matrices:
    """Keys' cubic convolution kernel with a = -1/2, exact for quadratic functions."""
    t = np.abs(distance)
    near = 1.5 * t**3 - 2.5 * t**2 + 1
    far = -0.5 * t**3 + 2.5 * t**2 - 4 * t + 2
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))
