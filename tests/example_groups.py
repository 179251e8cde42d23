"""Groups that the tests share: exact ones, bare tables, larger ones, and actions on signals and volumes."""

from __future__ import annotations

import functools
import itertools

import numpy as np

import coattend as ca

EXACT = ("C1", "C2", "C4", "D1", "D2", "D4")


def quaternions() -> ca.FiniteGroup:
    """Q8 = {1, i, -1, -i, j, k, -j, -k} from its 2x2 complex matrices."""
    i, j = np.array([[1j, 0], [0, -1j]]), np.array([[0, 1], [-1, 0]], dtype=complex)
    return from_matrices([np.eye(2), i, -np.eye(2), -i, j, i @ j, -j, -i @ j], "Q8")


def symmetric(n: int) -> ca.FiniteGroup:
    """S_n as permutation matrices, in lexicographic order."""
    return from_matrices([np.eye(n)[list(p)] for p in itertools.permutations(range(n))], f"S{n}")


def alternating4() -> ca.FiniteGroup:
    even = [p for p in itertools.permutations(range(4)) if np.linalg.det(np.eye(4)[list(p)]) > 0]
    return from_matrices([np.eye(4)[list(p)] for p in even], "A4")


@functools.cache
def octahedral(reflections: bool = False) -> ca.FiniteGroup:
    """The rotations of the cube, and its reflections if they are wanted, acting on volumes."""
    matrices = [m for m in signed_permutations(3) if reflections or np.linalg.det(m) > 0]
    return from_matrices(matrices, "Oh" if reflections else "O", acts=True)


def reflection() -> ca.FiniteGroup:
    """The reflection of signals."""
    return from_matrices(signed_permutations(1), "reflection", acts=True)


def signed_permutations(dimension: int) -> list[np.ndarray]:
    """All of them, the identity first."""
    matrices = [
        np.diag(signs) @ np.eye(dimension)[list(axes)] + 0.0
        for signs in itertools.product((1.0, -1.0), repeat=dimension)
        for axes in itertools.permutations(range(dimension))
    ]
    return sorted(matrices, key=lambda m: not (m == np.eye(dimension)).all())


def from_matrices(matrices: list[np.ndarray], name: str, acts: bool = False) -> ca.FiniteGroup:
    """The group of matrices, which are its action if they act."""
    stacked = np.stack(matrices)
    table = [np.isclose(a @ stacked[:, None], stacked).all(axis=(-2, -1)).argmax(axis=1) for a in matrices]
    return ca.FiniteGroup(np.array(table), action=matrices if acts else None, name=name)


BARE = {
    "S3": lambda: symmetric(3),
    "Q8": quaternions,
    "A4": alternating4,
    "C2 x D4": lambda: ca.direct_product(ca.cyclic(2), ca.dihedral(4)),
}
LARGE = {name: (lambda name=name: ca.get_group(name)) for name in ("C3", "C8", "C16", "D3", "D6", "D8")}
ALL = {**{name: (lambda name=name: ca.get_group(name)) for name in EXACT}, **LARGE, **BARE}
