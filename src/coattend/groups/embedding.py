"""A group as a subgroup of another: which elements move space alike."""

from __future__ import annotations

import functools

import numpy as np

from coattend.groups.finite_group import FiniteGroup, Subgroup


@functools.lru_cache(maxsize=64)
def embedding(subgroup: FiniteGroup, group: FiniteGroup) -> Subgroup:
    """Return for each element of ``subgroup``, in its order, the element of ``group`` that moves space in the same way.

    >>> from coattend.groups.named import cyclic, dihedral
    >>> embedding(cyclic(2), dihedral(4))
    (0, 2)
    """
    if subgroup.action is None or group.action is None or subgroup.dimension != group.dimension:
        raise ValueError(
            f"{subgroup.name} and {group.name} do not act on the same space, so that their elements cannot be matched; "
            "name the elements of the subgroup instead, such as (0, 2)."
        )
    # Angles of different orders, such as 2 pi / 4 and 4 pi / 8, differ by rounding.
    alike = np.abs(subgroup.action[:, None] - group.action).max(axis=(-2, -1)) < 1e-9
    if not alike.any(axis=1).all():
        missing = subgroup.describe(int(np.flatnonzero(~alike.any(axis=1))[0]))
        raise ValueError(f"{subgroup.name} is not a subgroup of {group.name}, which has no {missing!r}.")
    elements = alike.argmax(axis=1)
    products = group.product[np.ix_(elements, elements)]
    if len(set(elements.tolist())) < subgroup.order or (products != elements[subgroup.product]).any():
        raise ValueError(
            f"the elements of {subgroup.name} cannot be told apart in {group.name} by how they move space; name them "
            "instead, such as (0, 2)."
        )
    return tuple(elements.tolist())
