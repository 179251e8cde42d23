"""How a group element moves a filter: one linear map per element and kernel size.

Elements that move pixels onto pixels, such as quarter turns and flips, permute the taps. Others move k x k taps inside
the disc inscribed in the kernel, outside of which a turned filter would be cut off, or change the phases of the
coefficients of steerable filters.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coattend.groups.axioms import whole_number
from coattend.groups.finite_group import FiniteGroup, Matrices
from coattend.groups.named import get_group
from coattend.groups.plane_waves import waves_on_disc
from coattend.groups.rings import Rings, default_rings
from coattend.groups.taps import tap_coordinates, tap_permutation, taps_in_disc

Interpolation = Literal["bilinear", "bicubic"]
FilterKind = Literal["free", "steerable", "bicubic", "bilinear"]
Filters = FilterKind | Rings
LARGEST_TABLE = 2**27  # entries, a gigabyte


def filter_turns(
    group: FiniteGroup | str,
    kernel_size: int,
    filters: Filters = "free",
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return the maps that move a filter of size kernel_size along every spatial axis through all poses of the group.

    A filter has ``kernel_size**d`` taps for an action of dimension d. The maps depend on ``filters``:

    - ``"free"``, ``"bicubic"``, ``"bilinear"``: a filter is its taps. For an exact group the maps are integers
      (order, taps), tap p of the filter in pose g being tap ``turns[g, p]`` of the base filter. Otherwise they are
      numbers (order, taps, taps), the filter in pose g being ``turns[g] @ base``: for ``"free"`` the least-squares map
      over plane waves, see :mod:`coattend.groups.plane_waves`, else interpolation between neighbours.
    - ``"steerable"``, or :class:`Rings`: a filter is the coefficients of a basis of functions that turn by a change of
      phase; the maps are numbers (order, taps, coefficients).

    Numbers are of type ``dtype``, by default torch's.
    """
    moves, maps = coset_turns(group, kernel_size, filters, dtype)
    return moves if maps is None else maps[moves]


def coset_turns(
    group: FiniteGroup | str, kernel_size: int, filters: Filters, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return the maps of :func:`filter_turns` as permutations of few: ``turns = maps[moves]``, or ``moves`` for None.

    - moves: integers (order, taps)
    - maps: (cosets * taps, taps or coefficients), the maps of one element of each right coset of the exact subgroup

    All poses of a coset are permutations of the same numbers, so that turns by exact elements commute with the layer
    bit for bit in every precision, whatever the rounding of the maps and of the product with them.
    """
    group, size = get_group(group), whole_number(kernel_size)
    if size is None or size < 1:
        raise ValueError(f"kernel_size must be a whole number of at least 1, got {kernel_size!r}.")
    if group.dimension is None:
        raise ValueError(
            f"{group.name} is a bare table: it does not say how its elements move a filter. Pass FiniteGroup(table, "
            "planar=...) with an orthogonal 2 x 2 matrix per element, or use cyclic(n) or dihedral(n)."
        )
    rings = filter_rings(filters, size)
    if group.dimension != 2 and (rings is not None or (filters == "free" and not group.is_exact)):
        raise ValueError(
            f"{filters} filters are available in 2 dimensions, and {group.name} acts on {group.dimension}; pass "
            '"bicubic" or "bilinear".'
        )
    taps = size**group.dimension
    entries = group.order * taps * (rings.size if rings is not None else 1 if group.is_exact else taps)
    if entries > LARGEST_TABLE:
        raise ValueError(
            f"a {' x '.join([str(size)] * group.dimension)} kernel in {group.order} poses needs a table of {entries} "
            f"numbers, more than {LARGEST_TABLE}; use a smaller kernel or a smaller group."
        )
    moves, maps = _turn_table(group, size, filters if rings is None else rings)
    return torch.tensor(moves), None if maps is None else torch.tensor(maps, dtype=dtype or torch.get_default_dtype())


def filter_rings(filters: Filters, kernel_size: int) -> Rings | None:
    """Return the rings of steerable filters, and None for filters that are k x k taps."""
    if isinstance(filters, Rings):
        return filters
    if filters not in get_args(FilterKind):
        raise ValueError(f"filters must be one of {get_args(FilterKind)}, or Rings(orders=...), got {filters!r}.")
    return default_rings(kernel_size) if filters == "steerable" else None


def fitting_filters(filters: Filters, kernel_size: int) -> Filters:
    """Return the filters of a layer: rings without those that do not fit its kernel."""
    if not isinstance(filters, Rings):
        return filters
    return dataclasses.replace(filters, orders=filters.orders[: (kernel_size + 1) // 2])


@functools.lru_cache(maxsize=256)  # a deep network asks for the same few tables in every layer
def _turn_table(
    group: FiniteGroup, kernel_size: int, filters: Filters
) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
    assert group.action is not None
    permutations = {h: tap_permutation(group.action[h], kernel_size) for h in group.exact_elements}
    if group.is_exact and not isinstance(filters, Rings):
        return np.stack([permutations[g] for g in group.elements]), None
    cosets = group.right_cosets(group.exact_elements)
    moves = np.empty((group.order, kernel_size ** len(group.action[0])), dtype=np.int64)
    for number, coset in enumerate(cosets):
        for h in group.exact_elements:
            moves[group.product[h, coset[0]]] = number * moves.shape[1] + permutations[h]
    return moves, np.concatenate([_table(group.action[coset[0]], kernel_size, filters) for coset in cosets])


def _table(matrix: Matrices, kernel_size: int, filters: Filters) -> Matrices:
    """Return the map of one element, (taps, taps) or (taps, coefficients)."""
    if isinstance(filters, Rings):
        return filters.matrix(kernel_size, matrix)
    return _least_squares(matrix, kernel_size) if filters == "free" else _interpolation(matrix, kernel_size, filters)


def _least_squares(matrix: Matrices, kernel_size: int) -> Matrices:
    """Return the map of taps whose responses to plane waves are nearest to those of the turned filter."""
    inside = taps_in_disc(kernel_size)
    taps = tap_coordinates(kernel_size)[inside]
    waves = waves_on_disc(kernel_size)
    table = np.zeros((len(inside), len(inside)))
    table[np.ix_(inside, inside)] = waves.fit(waves.sample(taps @ matrix.T), np.ones(len(taps))).real
    return table


def _interpolation(matrix: Matrices, kernel_size: int, interpolation: str) -> Matrices:
    taps = tap_coordinates(kernel_size, len(matrix))
    distance = (taps @ matrix)[:, None, :] - taps[None, :, :]  # target tap, base tap, axis
    kernel = _linear if interpolation == "bilinear" else _cubic
    weights = kernel(distance).prod(axis=-1)
    inside = taps_in_disc(kernel_size, len(matrix))
    return weights * inside[:, None] * inside[None, :]


def _linear(distance: Matrices) -> Matrices:
    return np.maximum(0, 1 - np.abs(distance))


def _cubic(distance: Matrices) -> Matrices:
    """Keys' cubic convolution kernel with a = -1/2, exact for quadratic functions."""
    t = np.abs(distance)
    near = 1.5 * t**3 - 2.5 * t**2 + 1
    far = -0.5 * t**3 + 2.5 * t**2 - 4 * t + 2
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))
