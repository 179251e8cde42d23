"""Finite groups as integer tables, with an optional action on space."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coattend.groups.axioms import IntTable, verified_action, verified_table, whole_number

Matrices = NDArray[np.float64]
Subgroup = tuple[int, ...]


class FiniteGroup:
    """A finite group given by its multiplication table; element 0 is the identity.

    ``product[g, h]`` is the element that acts like h first, then g. The axioms are verified here, so that every other
    part of the library may rely on them. Groups are values: their arrays are read-only.

    ``action[g]`` is the orthogonal d x d matrix with which g moves d-dimensional space, ``planar`` its name for d = 2.
    Coordinates are x along the last axis of a tensor, y against the last but one, so that it points up, and z against
    the third to last. A group without an action works everywhere but in the spatial layers.

    >>> klein = FiniteGroup([[0, 1, 2, 3], [1, 0, 3, 2], [2, 3, 0, 1], [3, 2, 1, 0]])
    >>> klein.order, int(klein.product[1, 2]), klein.inverse.tolist()
    (4, 3, [0, 1, 2, 3])
    >>> reflection = FiniteGroup([[0, 1], [1, 0]], action=[[[1]], [[-1]]])
    >>> reflection.dimension, reflection.planar
    (1, None)
    """

    def __init__(
        self,
        table: ArrayLike,
        planar: ArrayLike | None = None,
        *,
        action: ArrayLike | None = None,
        name: str | None = None,
    ) -> None:
        if planar is not None and action is not None:
            raise ValueError("planar is the action for d = 2; pass one of planar and action, got both.")
        self.product = _read_only(verified_table(table))
        self.order = len(self.product)
        self.inverse: IntTable = _read_only(np.argmin(self.product, axis=1))
        self.action: Matrices | None = None
        if planar is not None:
            self.action = _read_only(verified_action(planar, self.product, dimension=2))
        elif action is not None:
            self.action = _read_only(verified_action(action, self.product))
        self.name = name or f"group of order {self.order}"

    @property
    def dimension(self) -> int | None:
        """The dimension of the space that the elements move, None without an action."""
        return None if self.action is None else self.action.shape[-1]

    @property
    def planar(self) -> Matrices | None:
        """The action as 2 x 2 matrices, None if it is of another dimension."""
        return self.action if self.dimension == 2 else None

    @property
    def elements(self) -> range:
        """All elements, the identity first."""
        return range(self.order)

    @cached_property
    def relative(self) -> IntTable:
        """``relative[g, h] = g^-1 h``: pose h as seen from pose g."""
        return _read_only(self.product[self.inverse])

    @cached_property
    def exact_elements(self) -> Subgroup:
        """The subgroup that moves pixels onto pixels, such as quarter turns and flips (all, without an action).

        In any dimension these are the elements whose matrices are signed permutations.
        """
        if self.action is None:
            return tuple(self.elements)
        return tuple(g for g in self.elements if is_signed_permutation(self.action[g]))

    @property
    def is_exact(self) -> bool:
        """Whether no element needs interpolation."""
        return len(self.exact_elements) == self.order

    def generate(self, elements: Iterable[int]) -> Subgroup:
        """Return the smallest subgroup that holds ``elements``."""
        generators = self.verified_elements(elements)
        generated = {0}
        frontier = {0}
        while frontier:
            frontier = {int(self.product[a, b]) for a in frontier for b in generators} - generated
            generated |= frontier
        return tuple(sorted(generated))

    def subgroups(self) -> list[Subgroup]:
        """Return every subgroup, smallest first."""
        subgroups: set[Subgroup] = {(0,)}
        frontier = subgroups
        while frontier:
            frontier = {self.generate((*k, g)) for k in frontier for g in self.elements if g not in k} - subgroups
            subgroups = subgroups | frontier
        return sorted(subgroups, key=lambda k: (len(k), k))

    def verified_subgroup(self, elements: Iterable[int]) -> Subgroup:
        """Return ``elements``, sorted, after checking that they form a subgroup."""
        subgroup = tuple(sorted(set(self.verified_elements(elements))))
        if not subgroup:
            raise ValueError("a subgroup holds at least the identity, got no element; pass (0,) for it.")
        products = self.product[np.ix_(subgroup, subgroup)]
        missing = np.argwhere(~np.isin(products, subgroup))
        if len(missing):
            a, b = (subgroup[i] for i in missing[0])
            raise ValueError(
                f"{list(subgroup)} is not a subgroup of {self.name}: {a} * {b} = "
                f"{int(self.product[a, b])} is missing; the smallest subgroup with these elements is "
                f"{list(self.generate(subgroup))} (group.generate finds it)."
            )
        return subgroup

    def left_cosets(self, subgroup: Iterable[int]) -> IntTable:
        """Return the left cosets gK, one per row, ordered by their smallest element; shape (order / |K|, |K|)."""
        return _cosets(self.product, self.verified_subgroup(subgroup))

    def right_cosets(self, subgroup: Iterable[int]) -> IntTable:
        """Return the right cosets Kg, one per row, ordered by their smallest element."""
        return _cosets(self.product.T, self.verified_subgroup(subgroup))

    def coset_action(self, subgroup: Iterable[int]) -> IntTable:
        """Return the table whose entry [g, i] is the number of the coset g a K, where a K is the i-th left coset."""
        cosets = self.left_cosets(subgroup)
        coset_of = np.empty(self.order, dtype=np.int64)
        coset_of[cosets] = np.arange(len(cosets))[:, None]
        return coset_of[self.product[:, cosets[:, 0]]]

    def is_normal(self, subgroup: Iterable[int]) -> bool:
        """Return whether left and right cosets of the subgroup coincide."""
        k = self.verified_subgroup(subgroup)
        return all({int(self.product[g, a]) for a in k} == {int(self.product[a, g]) for a in k} for g in self.elements)

    def restrict(self, subgroup: Iterable[int]) -> FiniteGroup:
        """Return the subgroup as a group, its elements renumbered in ascending order."""
        k = np.asarray(self.verified_subgroup(subgroup))
        table = np.searchsorted(k, self.product[np.ix_(k, k)])
        action = None if self.action is None else self.action[k]
        return FiniteGroup(table, action=action, name=f"{k.tolist()} of {self.name}")

    def describe(self, g: int) -> str:
        """Return in words what element g does to an image."""
        g = self.verified_element(g)
        if g == 0:
            return "identity"
        if self.planar is None:
            return f"element {g}"
        degrees = self.angle(g)
        turn = f"turn {degrees:g}°"
        if not self.mirrored[g]:
            return turn if degrees else "no move"
        return f"mirror, {turn}" if degrees else "mirror"

    @cached_property
    def mirrored(self) -> NDArray[np.bool_]:
        """Which elements reverse the orientation of space; none, without an action."""
        if self.action is None:
            return _read_only(np.zeros(self.order, dtype=bool))
        return _read_only(np.linalg.det(self.action) < 0)

    def angle(self, g: int) -> float:
        """Return by how many degrees element g of a planar action turns, counter-clockwise, after its mirror if any."""
        if self.planar is None:
            raise ValueError(f"{self.name} has no planar action, so that its elements have no angles.")
        up = self.planar[self.verified_element(g)][:, 1]  # where "up" goes, which mirroring the columns does not change
        return round(float(np.degrees(np.arctan2(-up[0], up[1]))) % 360, 1) % 360

    def verified_element(self, g: object) -> int:
        """Return ``g`` as an int, after checking that it is an element's index."""
        index = whole_number(g)
        if index is None or not 0 <= index < self.order:
            raise ValueError(f"{self.name} has elements 0 to {self.order - 1}, got {g!r}.")
        return index

    def verified_elements(self, elements: object) -> list[int]:
        """Return ``elements`` as a list of ints, after checking that they are elements' indices."""
        if not isinstance(elements, Iterable) or isinstance(elements, str):
            raise ValueError(f"expected several elements of {self.name}, such as (0,), got {elements!r}.")
        return [self.verified_element(g) for g in elements]

    @cached_property
    def _hash(self) -> int:
        return hash((self.product.tobytes(), None if self.action is None else self.action.tobytes()))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, FiniteGroup) or self.dimension != other.dimension:
            return False
        same_action = self.action is None or np.array_equal(self.action, other.action)  # type: ignore[arg-type]
        return same_action and np.array_equal(self.product, other.product)

    def __hash__(self) -> int:
        return self._hash

    def __deepcopy__(self, memo: dict[int, Any]) -> FiniteGroup:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.product, self.action, self.name)

    def __repr__(self) -> str:
        kind = {None: "bare", 2: "planar"}.get(self.dimension, f"dimension={self.dimension}")
        return f"FiniteGroup({self.name}, order={self.order}, {kind})"


def is_signed_permutation(matrix: Matrices) -> bool:
    """Return whether an orthogonal matrix maps axes to axes, so that it moves pixels onto pixels."""
    return bool(np.isin(matrix, (-1.0, 0.0, 1.0)).all())


def _rebuild(table: IntTable, action: Matrices | None, name: str) -> FiniteGroup:
    return FiniteGroup(table, action=action, name=name)


def _cosets(product: IntTable, subgroup: Sequence[int]) -> IntTable:
    rows = np.sort(product[:, list(subgroup)], axis=1)
    return np.unique(rows, axis=0)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.setflags(write=False)
    return array
