"""The groups that images have: rotations, rotations with mirrors, and products of groups."""

from __future__ import annotations

import functools
import re

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coattend.groups.axioms import check_order
from coattend.groups.finite_group import FiniteGroup
from coattend.groups.integers import whole_number

# Wallpaper groups by their point groups; z2, the translations alone, is also called p1.
WALLPAPER_NAMES = {
    "z2": "C1", "p1": "C1", "p2": "C2", "p3": "C3", "p4": "C4", "p6": "C6",
    "pm": "D1", "pmm": "D2", "p4m": "D4", "p6m": "D6",
}  # fmt: skip


def cyclic(n: int, *, clockwise: bool = False) -> FiniteGroup:
    """Rotations by multiples of 2*pi/n; element r turns counter-clockwise by r steps, or clockwise on request.

    >>> cyclic(4).product[1].tolist()
    [1, 2, 3, 0]
    """
    order = _verified_order(n, "cyclic")
    check_order(order, f"C{order}")
    r = np.arange(order)
    steps = -r if clockwise else r
    name = f"C{order} clockwise" if clockwise else f"C{order}"
    return FiniteGroup((r[:, None] + r) % order, _rotations(steps, order), name=name)


def dihedral(n: int) -> FiniteGroup:
    """Rotations by multiples of 2*pi/n and mirrors; element n * mirror + r mirrors the columns, then turns.

    >>> int(dihedral(4).product[4, 1]), int(dihedral(4).product[1, 4])  # a mirror reverses the sense of turning
    (7, 5)
    """
    order = _verified_order(n, "dihedral")
    check_order(2 * order, f"D{order}")
    mirror, r = np.divmod(np.arange(2 * order), order)
    turn = (r[:, None] + np.where(mirror, -1, 1)[:, None] * r) % order  # M R^b = R^-b M
    table = order * (mirror[:, None] ^ mirror) + turn
    flips = np.stack([np.eye(2), np.diag([-1.0, 1.0])])
    return FiniteGroup(table, _rotations(r, order) @ flips[mirror], name=f"D{order}")


def direct_product(a: FiniteGroup | str, b: FiniteGroup | str, planar: ArrayLike | None = None) -> FiniteGroup:
    """All pairs (i, j), numbered ``b.order * i + j``.

    How two factors move one plane together is not determined by how each moves it alone, so the product carries
    an action only if ``planar`` gives one.
    """
    a, b = get_group(a), get_group(b)
    check_order(a.order * b.order, f"{a.name} x {b.name}")
    i, j = np.divmod(np.arange(a.order * b.order), b.order)
    table = b.order * a.product[i[:, None], i] + b.product[j[:, None], j]
    return FiniteGroup(table, planar, name=f"{a.name} x {b.name}")


def get_group(group: str | FiniteGroup) -> FiniteGroup:
    """A group by name: ``p4``, ``p4m``, ``p6``, ``C8``, ``C4 clockwise``, ``D6``, ...; a group stays as it is.

    >>> get_group("p4m") == dihedral(4)
    True
    """
    if isinstance(group, FiniteGroup):
        return group
    if not isinstance(group, str):
        raise ValueError(f"expected a group or a group's name, got {type(group).__name__}: {group!r}.")
    match = re.fullmatch(r"([CD])([1-9]\d{0,8})( CLOCKWISE)?", WALLPAPER_NAMES.get(group.lower(), group.upper()))
    if match is None or (match[3] and match[1] == "D"):
        raise ValueError(
            f"unknown group {group!r}; expected {', '.join(WALLPAPER_NAMES)}, Cn for rotations or Dn for rotations and "
            "mirrors (for example C8 or D8), or a FiniteGroup."
        )
    return _by_name(match[1], int(match[2]), match[3] is not None)


@functools.lru_cache(maxsize=32)  # every layer of a network asks for the same one
def _by_name(family: str, n: int, clockwise: bool) -> FiniteGroup:
    return cyclic(n, clockwise=clockwise) if family == "C" else dihedral(n)


def _rotations(steps: NDArray[np.int64], order: int) -> NDArray[np.float64]:
    angle = 2 * np.pi * steps / order
    return np.stack([np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)], axis=-1).reshape(-1, 2, 2)


def _verified_order(n: int, family: str) -> int:
    order = whole_number(n)
    if order is None or order < 1:
        raise ValueError(f"{family}(n) expects a whole number of rotations n >= 1, got {n!r}.")
    return order
