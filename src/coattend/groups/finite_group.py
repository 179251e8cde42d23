"""Finite groups as integer tables, with an optional action on the plane."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

IntTable = NDArray[np.int64]
Subgroup = tuple[int, ...]


class FiniteGroup:
    """A finite group given by its multiplication table; element 0 is the identity.

    ``product[g, h]`` is the element that acts like h first, then g. The axioms are verified here, so every
    other part of the library may rely on them. ``planar[g]`` is the orthogonal 2x2 matrix with which g moves
    the plane (x to the right, y up); a group without one works everywhere but in the spatial layers.

    >>> klein = FiniteGroup([[0, 1, 2, 3], [1, 0, 3, 2], [2, 3, 0, 1], [3, 2, 1, 0]])
    >>> klein.order, int(klein.product[1, 2]), klein.inverse.tolist()
    (4, 3, [0, 1, 2, 3])
    """

    def __init__(self, table: ArrayLike, planar: ArrayLike | None = None, *, name: str | None = None) -> None:
        self.product = _verified_table(table)
        self.order = len(self.product)
        self.inverse: IntTable = np.argmin(self.product, axis=1)
        self.planar = None if planar is None else _verified_action(planar, self.product)
        self.name = name or f"group of order {self.order}"

    @property
    def elements(self) -> range:
        """All elements, the identity first."""
        return range(self.order)

    @cached_property
    def relative(self) -> IntTable:
        """``relative[g, h] = g^-1 h``: pose h as seen from pose g."""
        return self.product[self.inverse]

    @cached_property
    def exact_elements(self) -> Subgroup:
        """The subgroup that moves pixels onto pixels: quarter turns and flips (all, without an action)."""
        if self.planar is None:
            return tuple(self.elements)
        return tuple(g for g in self.elements if quarter_turn(self.planar[g]) is not None)

    @property
    def is_exact(self) -> bool:
        """Whether no element needs interpolation."""
        return len(self.exact_elements) == self.order

    def generate(self, elements: Iterable[int]) -> Subgroup:
        """The smallest subgroup that holds ``elements``."""
        generators = self._element_indices(elements)
        found = {0}
        frontier = {0}
        while frontier:
            frontier = {int(self.product[a, b]) for a in frontier for b in generators} - found
            found |= frontier
        return tuple(sorted(found))

    def subgroups(self) -> list[Subgroup]:
        """Every subgroup, smallest first."""
        found: set[Subgroup] = {(0,)}
        frontier = found
        while frontier:
            frontier = {self.generate((*k, g)) for k in frontier for g in self.elements if g not in k} - found
            found = found | frontier
        return sorted(found, key=lambda k: (len(k), k))

    def verified_subgroup(self, elements: Iterable[int]) -> Subgroup:
        """``elements``, sorted, after checking that they form a subgroup."""
        subgroup = tuple(sorted(set(self._element_indices(elements))))
        for a in subgroup:
            for b in subgroup:
                if int(self.product[a, b]) not in subgroup:
                    raise ValueError(
                        f"{list(subgroup)} is not a subgroup of {self.name}: {a} * {b} = "
                        f"{int(self.product[a, b])} is missing; the smallest subgroup with these elements is "
                        f"{list(self.generate(subgroup))} (group.generate finds it)."
                    )
        if not subgroup:
            raise ValueError("a subgroup holds at least the identity, got no element; pass (0,) for it.")
        return subgroup

    def left_cosets(self, subgroup: Iterable[int]) -> IntTable:
        """The left cosets gK, one per row, ordered by their smallest element; shape (order / |K|, |K|)."""
        return _cosets(self.product, self.verified_subgroup(subgroup))

    def right_cosets(self, subgroup: Iterable[int]) -> IntTable:
        """The right cosets Kg, one per row, ordered by their smallest element."""
        return _cosets(self.product.T, self.verified_subgroup(subgroup))

    def coset_action(self, subgroup: Iterable[int]) -> IntTable:
        """``coset_action(K)[g, i]`` is the number of the coset g a K, where a K is the i-th left coset."""
        cosets = self.left_cosets(subgroup)
        coset_of = np.empty(self.order, dtype=np.int64)
        coset_of[cosets] = np.arange(len(cosets))[:, None]
        return coset_of[self.product[:, cosets[:, 0]]]

    def is_normal(self, subgroup: Iterable[int]) -> bool:
        """Whether left and right cosets of the subgroup coincide."""
        k = self.verified_subgroup(subgroup)
        return all({int(self.product[g, a]) for a in k} == {int(self.product[a, g]) for a in k} for g in self.elements)

    def restrict(self, subgroup: Iterable[int]) -> FiniteGroup:
        """The subgroup as a group of its own, its elements renumbered in ascending order."""
        k = np.asarray(self.verified_subgroup(subgroup))
        planar = None if self.planar is None else self.planar[k]
        return FiniteGroup(np.searchsorted(k, self.product[np.ix_(k, k)]), planar, name=f"{k.tolist()} of {self.name}")

    def describe(self, g: int) -> str:
        """What element g does to an image, in words."""
        if g == 0:
            return "identity"
        if self.planar is None:
            return f"element {g}"
        matrix = self.planar[g]
        mirrored = np.linalg.det(matrix) < 0
        turned = matrix @ np.diag([-1.0, 1.0]) if mirrored else matrix
        degrees = round(float(np.degrees(np.arctan2(turned[1, 0], turned[0, 0]))) % 360, 1) % 360
        turn = f"turn {degrees:g}°"
        if not mirrored:
            return turn if degrees else "no move"
        return f"mirror, {turn}" if degrees else "mirror"

    def _element_indices(self, elements: Iterable[int]) -> list[int]:
        indices = [int(g) for g in elements]
        for g in indices:
            if not 0 <= g < self.order:
                raise ValueError(f"{self.name} has elements 0 to {self.order - 1}, got {g}.")
        return indices

    def _key(self) -> tuple[bytes, bytes | None]:
        return self.product.tobytes(), None if self.planar is None else self.planar.tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FiniteGroup) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.product, self.planar, self.name)

    def __repr__(self) -> str:
        return f"FiniteGroup({self.name}, order={self.order}, {'planar' if self.planar is not None else 'bare'})"


def quarter_turn(matrix: NDArray[np.float64]) -> tuple[bool, int] | None:
    """``(mirrored, turns)`` such that the matrix is a column flip, then quarter turns; None for other angles."""
    if not np.isin(matrix, (-1.0, 0.0, 1.0)).all():
        return None
    mirrored = bool(np.linalg.det(matrix) < 0)
    first_column = matrix[:, 0] * (-1.0 if mirrored else 1.0)
    turns = {(1, 0): 0, (0, 1): 1, (-1, 0): 2, (0, -1): 3}
    return mirrored, turns[(int(first_column[0]), int(first_column[1]))]


def _rebuild(table: IntTable, planar: NDArray[np.float64] | None, name: str) -> FiniteGroup:
    return FiniteGroup(table, planar, name=name)


def _cosets(product: IntTable, subgroup: Sequence[int]) -> IntTable:
    rows = np.sort(product[:, list(subgroup)], axis=1)
    return np.unique(rows, axis=0)


def _verified_table(table: ArrayLike) -> IntTable:
    array = np.asarray(table)
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.shape[0] == 0:
        raise ValueError(
            f"a multiplication table is square, one row and column per element, got shape {array.shape}; "
            "product[g, h] must hold the index of g * h."
        )
    if not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"a multiplication table holds integer element indices, got dtype {array.dtype}.")
    product = array.astype(np.int64)
    order = len(product)

    outside = np.argwhere((product < 0) | (product >= order))
    if len(outside):
        a, b = outside[0]
        raise ValueError(f"not closed: {a} * {b} = {product[a, b]}, but the elements are 0 to {order - 1}.")

    everything = np.arange(order)
    not_neutral = np.argwhere((product[0] != everything) | (product[:, 0] != everything))
    if len(not_neutral):
        for e in everything:
            if (product[e] == everything).all() and (product[:, e] == everything).all():
                raise ValueError(
                    f"the identity must be element 0, here it is element {e}; swap the two in the table's rows, "
                    "columns and entries."
                )
        a = int(not_neutral[0, 0])
        raise ValueError(
            f"no identity: element 0 should leave element {a} alone, but 0 * {a} = {product[0, a]} and "
            f"{a} * 0 = {product[a, 0]}, and no other element is neutral."
        )

    for a in everything:  # row by row: order^2 memory at a time instead of order^3
        differs = np.argwhere(product[product[a]] != product[a][product])
        if len(differs):
            b, c = differs[0]
            raise ValueError(
                f"not associative: ({a} * {b}) * {c} = {product[product[a, b], c]}, but "
                f"{a} * ({b} * {c}) = {product[a, product[b, c]]}."
            )

    without_inverse = np.flatnonzero((product != 0).all(axis=1))
    if len(without_inverse):
        a = int(without_inverse[0])
        raise ValueError(f"element {a} has no inverse: no h gives {a} * h = 0.")
    return product


def _verified_action(planar: ArrayLike, product: IntTable) -> NDArray[np.float64]:
    matrices = np.array(planar, dtype=np.float64)
    order = len(product)
    if matrices.shape != (order, 2, 2):
        raise ValueError(f"a planar action is one 2x2 matrix per element, shape {(order, 2, 2)}, got {matrices.shape}.")
    whole = np.round(matrices)
    matrices = np.where(np.abs(matrices - whole) < 1e-12, whole, matrices) + 0.0  # + 0.0 turns -0 into 0
    skew = np.argwhere(~np.isclose(matrices @ matrices.transpose(0, 2, 1), np.eye(2), atol=1e-9).all(axis=(1, 2)))
    if len(skew):
        g = int(skew[0, 0])
        raise ValueError(f"the matrix of element {g} is not orthogonal: {matrices[g].tolist()}.")
    composed = np.einsum("gij,hjk->ghik", matrices, matrices)
    broken = np.argwhere(~np.isclose(matrices[product], composed, atol=1e-9).all(axis=(2, 3)))
    if len(broken):
        g, h = broken[0]
        raise ValueError(
            f"the action is not a homomorphism: {g} * {h} = {product[g, h]}, but the matrix of element "
            f"{product[g, h]} is not that of {g} times that of {h}; each product must move the plane like h, then g."
        )
    return matrices
