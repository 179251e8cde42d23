"""Verify the axioms of a group and of its action on space, and name the elements that break them."""

from __future__ import annotations

import operator

import numpy as np
from numpy.typing import ArrayLike, NDArray

LARGEST_ORDER = 1024  # tables of a million entries; a filter bank has as many blocks
IntTable = NDArray[np.int64]


def check_order(order: int, group: str) -> None:
    """Require an order whose tables fit into memory, before they are built."""
    if order > LARGEST_ORDER:
        raise ValueError(f"{group} has {order} elements; groups of up to {LARGEST_ORDER} elements are supported.")


def verified_table(table: ArrayLike) -> IntTable:
    """Return a multiplication table as a new array, after checking that it is that of a group."""
    try:
        array = np.asarray(table)
    except ValueError as error:
        raise ValueError("a multiplication table is square, but its rows differ in length.") from error
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.shape[0] == 0:
        raise ValueError(
            f"a multiplication table is square, one row and column per element, got shape {array.shape}; "
            "product[g, h] must hold the index of g * h."
        )
    check_order(len(array), "this table")
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

    repeats = np.argwhere(np.sort(product, axis=1) != everything)
    if len(repeats):
        a = int(repeats[0, 0])
        value = int(np.bincount(product[a]).argmax())
        b, c = np.flatnonzero(product[a] == value)[:2]
        raise ValueError(f"element {a} has no inverse: {a} * {b} and {a} * {c} are both {value}.")
    _check_associative(product)
    return product


def _check_associative(product: IntTable) -> None:
    """Light's test: the elements a with (x a) y = x (a y) for all x, y are closed under products.

    So it is enough to check generators. Each generator that is not reached yet at least doubles the reached elements:
    in a table whose rows hold every element once, at most log2(order) generators are needed.
    """
    reached = np.zeros(len(product), dtype=bool)
    reached[0] = True
    while not reached.all():
        a = int(np.argmin(reached))
        differs = np.argwhere(product[product[:, a]] != product[:, product[a]])
        if len(differs):
            x, y = differs[0]
            raise ValueError(
                f"not associative: ({x} * {a}) * {y} = {product[product[x, a], y]}, but "
                f"{x} * ({a} * {y}) = {product[x, product[a, y]]}."
            )
        reached[a] = True
        count = 0
        while count < (members := np.flatnonzero(reached)).size:
            count = members.size
            reached[product[np.ix_(members, members)]] = True


def verified_action(action: ArrayLike, product: IntTable, dimension: int | None = None) -> NDArray[np.float64]:
    """Return one orthogonal d x d matrix per element, after checking that they multiply as the elements do.

    ``dimension`` is the d that is required, by default any.
    """
    order, d = len(product), dimension or "d"
    expected = f"an action is one {d} x {d} matrix per element, shape ({order}, {d}, {d})"
    try:
        given = np.array(action, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{expected}, of numbers.") from error
    if given.ndim != 3 or given.shape[:2] != (order, given.shape[2]) or dimension not in (None, given.shape[2]):
        raise ValueError(f"{expected}, got shape {given.shape}.")
    if not given.shape[2]:
        raise ValueError(f"{expected} with d of at least 1, got shape {given.shape}.")
    matrices = _with_whole_numbers(given)
    _check_orthogonal(matrices, given)
    _check_homomorphism(matrices, product)
    return matrices


def _with_whole_numbers(given: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the matrices with entries that are whole numbers but for rounding set to these."""
    # Entries of an orthogonal matrix are at most 1; larger ones would overflow later, and are set to 0.
    matrices = np.where(np.abs(given) < 2, given, 0.0)
    whole = np.round(matrices)
    return np.where(np.abs(matrices - whole) < 1e-12, whole, matrices) + 0.0  # + 0.0 turns -0 into 0


def _check_orthogonal(matrices: NDArray[np.float64], given: NDArray[np.float64]) -> None:
    identity = np.eye(matrices.shape[-1])
    skew = np.argwhere(~np.isclose(matrices @ matrices.transpose(0, 2, 1), identity, atol=1e-9).all(axis=(1, 2)))
    if len(skew):
        g = int(skew[0, 0])
        raise ValueError(f"the matrix of element {g} is not orthogonal: {given[g].tolist()}.")


def _check_homomorphism(matrices: NDArray[np.float64], product: IntTable) -> None:
    order, d, _ = matrices.shape
    composed = matrices.reshape(-1, d) @ matrices.transpose(1, 0, 2).reshape(d, -1)  # (g i), (h k): in one product
    expected = matrices[product].transpose(0, 2, 1, 3).reshape(d * order, -1)
    close = np.abs(expected - composed) <= 1e-9 + 1e-5 * np.abs(composed)
    broken = np.argwhere(~close.reshape(order, d, order, d).all(axis=(1, 3)))
    if len(broken):
        g, h = broken[0]
        raise ValueError(
            f"the action is not a homomorphism: {g} * {h} = {product[g, h]}, but the matrix of element "
            f"{product[g, h]} is not that of {g} times that of {h}; each product must act like h, then g."
        )


def whole_number(value: object) -> int | None:
    """Return a whole number of any type (of Python, of NumPy, of torch) as an int, and None for anything else.

    Truth values are none, and 2.0 is none either: where a count or an index is expected, both are mistakes.
    """
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
