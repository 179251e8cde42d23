"""The axioms of a group and of its action on the plane, verified, with the elements that break them named."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

LARGEST_ORDER = 1024  # tables of a million entries; a filter bank has as many blocks
IntTable = NDArray[np.int64]


def check_order(order: int, group: str) -> None:
    """Refuse a group whose tables would fill the memory, before they are made."""
    if order > LARGEST_ORDER:
        raise ValueError(f"{group} has {order} elements; groups of up to {LARGEST_ORDER} elements are supported.")


def verified_table(table: ArrayLike) -> IntTable:
    """A multiplication table as an array of its own, after checking that it is that of a group."""
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

    So it is enough to look at generators. Each one that is not yet reached at least doubles what is: in a table whose
    rows hold every element once, at most log2(order) of them are needed.
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


def verified_action(planar: ArrayLike, product: IntTable) -> NDArray[np.float64]:
    """One orthogonal 2x2 matrix per element, after checking that they multiply as the elements do."""
    order = len(product)
    try:
        given = np.array(planar, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a planar action is one 2x2 matrix of numbers per element, shape {(order, 2, 2)}.") from error
    if given.shape != (order, 2, 2):
        raise ValueError(f"a planar action is one 2x2 matrix per element, shape {(order, 2, 2)}, got {given.shape}.")
    # Entries of an orthogonal matrix are at most 1; what is far beyond would overflow below, and so become zero here.
    matrices = np.where(np.abs(given) < 2, given, 0.0)
    whole = np.round(matrices)
    matrices = np.where(np.abs(matrices - whole) < 1e-12, whole, matrices) + 0.0  # + 0.0 turns -0 into 0
    skew = np.argwhere(~np.isclose(matrices @ matrices.transpose(0, 2, 1), np.eye(2), atol=1e-9).all(axis=(1, 2)))
    if len(skew):
        g = int(skew[0, 0])
        raise ValueError(f"the matrix of element {g} is not orthogonal: {given[g].tolist()}.")
    composed = matrices.reshape(-1, 2) @ matrices.transpose(1, 0, 2).reshape(2, -1)  # (g i), (h k): all by one product
    expected = matrices[product].transpose(0, 2, 1, 3).reshape(2 * order, -1)
    close = np.abs(expected - composed) <= 1e-9 + 1e-5 * np.abs(composed)
    broken = np.argwhere(~close.reshape(order, 2, order, 2).all(axis=(1, 3)))
    if len(broken):
        g, h = broken[0]
        raise ValueError(
            f"the action is not a homomorphism: {g} * {h} = {product[g, h]}, but the matrix of element "
            f"{product[g, h]} is not that of {g} times that of {h}; each product must move the plane like h, then g."
        )
    return matrices
