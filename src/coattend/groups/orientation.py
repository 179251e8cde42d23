"""How a group moves directions and axes in the plane, as pairs of numbers."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from coattend.groups.finite_group import FiniteGroup, Matrices, is_signed_permutation

Orientation = Literal["vector", "axis"]
MULTIPLES = {"vector": 1, "axis": 2}  # of the angle that the pair of numbers encodes


def orientation_action(group: FiniteGroup, kind: Orientation) -> Matrices:
    """Return for each element the matrix (2, 2) by which it moves a vector, or an axis.

    A vector is (x, y), x to the right and y up. An axis at the angle a, which is the same as at a + 180 degrees, is a
    positive multiple of (cos 2a, sin 2a). An element that takes the angle a to b + a, or with a mirror to b - a, takes
    the angle m a to m b + m a, or to m b - m a: the matrices are the rotation by m b, after a reflection if it mirrors.
    """
    if kind not in get_args(Orientation):
        raise ValueError(f"an orientation is one of {', '.join(get_args(Orientation))}, got {kind!r}.")
    if group.planar is None:
        raise ValueError(
            f"{group.name} does not act on the plane, so that it has no directions; pass a group such as C4 or D4."
        )
    angle = MULTIPLES[kind] * np.arctan2(group.planar[:, 1, 0], group.planar[:, 0, 0])
    rotation = np.stack([np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)], axis=-1).reshape(-1, 2, 2)
    reflection = np.stack([np.eye(2), np.diag([1.0, -1.0])])
    matrices = rotation @ reflection[group.mirrored.astype(int)]
    exact = [is_signed_permutation(matrix) for matrix in group.planar]
    matrices[exact] = matrices[exact].round() + 0.0  # without rounding errors, and without -0
    return matrices
