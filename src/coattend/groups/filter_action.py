"""How a group element moves a filter: one linear map per element and kernel size.

Quarter turns and flips permute the taps. Other angles interpolate inside the disc inscribed in the kernel, outside
of which a turned filter would be cut off.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coattend.groups.finite_group import FiniteGroup
from coattend.groups.integers import whole_number
from coattend.groups.named import get_group

Interpolation = Literal["bilinear", "bicubic"]
LARGEST_TABLE = 2**27  # entries, a gigabyte


def filter_turns(
    group: FiniteGroup | str,
    kernel_size: int,
    interpolation: Interpolation = "bicubic",
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The maps that turn a kernel_size x kernel_size filter through all poses of the group.

    For an exact group: integers (order, taps), tap p of the filter in pose g being tap ``turns[g, p]`` of the base
    filter. Otherwise: numbers (order, taps, taps) of type ``dtype``, by default torch's, the filter in pose g being
    ``turns[g] @ base``.
    """
    if interpolation not in get_args(Interpolation):
        raise ValueError(f"interpolation must be one of {get_args(Interpolation)}, got {interpolation!r}.")
    group, size = get_group(group), whole_number(kernel_size)
    if size is None or size < 1:
        raise ValueError(f"kernel_size must be a whole number of at least 1, got {kernel_size!r}.")
    if group.planar is None:
        raise ValueError(
            f"{group.name} is a bare table: it does not say how its elements move a filter. Pass FiniteGroup(table, "
            "planar=...) with an orthogonal 2x2 matrix per element, or use cyclic(n) or dihedral(n)."
        )
    entries = group.order * size ** (2 if group.is_exact else 4)
    if entries > LARGEST_TABLE:
        raise ValueError(
            f"a {size} x {size} kernel in {group.order} poses needs a table of {entries} numbers, more than "
            f"{LARGEST_TABLE}; use a smaller kernel or a smaller group."
        )
    table = _turn_table(group, size, interpolation)
    return torch.tensor(table) if group.is_exact else torch.tensor(table, dtype=dtype or torch.get_default_dtype())


@functools.lru_cache(maxsize=256)  # a deep network asks for the same few tables in every layer
def _turn_table(group: FiniteGroup, kernel_size: int, interpolation: Interpolation) -> NDArray[Any]:
    assert group.planar is not None
    if group.is_exact:
        permutations = np.stack([_tap_permutation(m, kernel_size) for m in group.planar])
        permutations.setflags(write=False)
        return permutations

    # Each right coset H g of the exact subgroup H is interpolated once and then permuted, so that turns by H commute
    # with the layer bit for bit in every precision, whatever the rounding of the interpolation weights.
    taps = kernel_size**2
    turns = np.empty((group.order, taps, taps))
    for coset in group.right_cosets(group.exact_elements):
        representative = coset[0]
        interpolated = _interpolation_matrix(group.planar[representative], kernel_size, interpolation)
        for h in group.exact_elements:
            turns[group.product[h, representative]] = interpolated[_tap_permutation(group.planar[h], kernel_size)]
    turns.setflags(write=False)
    return turns


def _coordinates(kernel_size: int) -> NDArray[np.float64]:
    """Centred (x, y) of every tap, x to the right, y up; shape (taps, 2)."""
    steps = np.arange(kernel_size) - (kernel_size - 1) / 2
    y, x = np.meshgrid(-steps, steps, indexing="ij")
    return np.stack([x.ravel(), y.ravel()], axis=-1)


def _tap_permutation(matrix: NDArray[np.float64], kernel_size: int) -> NDArray[np.int64]:
    source = _coordinates(kernel_size) @ matrix  # rows are (g^-1 u)^T = u^T g, g being orthogonal
    column = np.rint(source[:, 0] + (kernel_size - 1) / 2)
    row = np.rint((kernel_size - 1) / 2 - source[:, 1])
    return (row * kernel_size + column).astype(np.int64)


def _interpolation_matrix(
    matrix: NDArray[np.float64], kernel_size: int, interpolation: Interpolation
) -> NDArray[np.float64]:
    taps = _coordinates(kernel_size)
    distance = (taps @ matrix)[:, None, :] - taps[None, :, :]  # target tap, base tap, axis
    kernel = _linear if interpolation == "bilinear" else _cubic
    weights = kernel(distance).prod(axis=-1)
    inside = np.linalg.norm(taps, axis=-1) <= kernel_size / 2
    return weights * inside[:, None] * inside[None, :]


def _linear(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(0, 1 - np.abs(distance))


def _cubic(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Keys' cubic convolution kernel with a = -1/2, exact for quadratic functions."""
    t = np.abs(distance)
    near = 1.5 * t**3 - 2.5 * t**2 + 1
    far = -0.5 * t**3 + 2.5 * t**2 - 4 * t + 2
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))
