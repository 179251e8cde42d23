"""Groups by name: rotations, rotations with mirrors, products, and those that users register."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coattend._registry import Registry
from coattend._words import did_you_mean
from coattend.groups.axioms import check_order, whole_number
from coattend.groups.finite_group import FiniteGroup

GROUPS: Registry[Callable[[], FiniteGroup]] = Registry("group")  # by name in lower case
FAMILIES = re.compile(r"([CD])([1-9]\d{0,8})( CLOCKWISE)?", re.IGNORECASE)


def cyclic(n: int, *, clockwise: bool = False) -> FiniteGroup:
    """Return the rotations by multiples of 2*pi/n; element r turns by r steps counter-clockwise, or clockwise.

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
    """Return the rotations by multiples of 2*pi/n and mirrors; element n * mirror + r mirrors columns, then turns.

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


def direct_product(
    a: FiniteGroup | str, b: FiniteGroup | str, planar: ArrayLike | None = None, *, action: ArrayLike | None = None
) -> FiniteGroup:
    """Return the group of all pairs (i, j), numbered ``b.order * i + j``.

    How two factors move one space together does not follow from how each moves it alone, so the product has an action
    only if ``planar`` or ``action`` gives one.
    """
    a, b = get_group(a), get_group(b)
    check_order(a.order * b.order, f"{a.name} x {b.name}")
    i, j = np.divmod(np.arange(a.order * b.order), b.order)
    table = b.order * a.product[i[:, None], i] + b.product[j[:, None], j]
    return FiniteGroup(table, planar, action=action, name=f"{a.name} x {b.name}")


def register_group(name: str) -> Callable[[Callable[[], FiniteGroup]], Callable[[], FiniteGroup]]:
    """Return a decorator that registers a function without arguments that returns a group.

    The name is understood, in upper and lower case, wherever a group is named: in layers, networks and on the command
    line.

    Example::

        @register_group("rectangle")
        def rectangle() -> FiniteGroup:
            return dihedral(2)
    """
    if isinstance(name, str) and FAMILIES.fullmatch(name):
        raise ValueError(f"{name!r} is the name of a cyclic or dihedral group; choose another name.")

    def register(make: Callable[[], FiniteGroup]) -> Callable[[], FiniteGroup]:
        if not callable(make):
            raise ValueError(f"register_group expects a function that returns a group, got {make!r}.")
        GROUPS.add(name.lower() if isinstance(name, str) else name, make)
        return make

    return register


def get_group(group: str | FiniteGroup) -> FiniteGroup:
    """Return a group by name: ``p4``, ``p4m``, ``p6``, ``C8``, ``C4 clockwise``, ``D6``, or a registered one.

    A group is returned as it is.

    >>> get_group("p4m") == dihedral(4)
    True
    """
    if isinstance(group, FiniteGroup):
        return group
    if not isinstance(group, str):
        raise ValueError(f"expected a group or a group's name, got {type(group).__name__}: {group!r}.")
    match = FAMILIES.fullmatch(group)
    if match is not None and not (match[3] and match[1] in "dD"):
        return _of_family(match[1].upper(), int(match[2]), match[3] is not None)
    name = group.lower()
    if name not in GROUPS:
        raise ValueError(
            f"unknown group {group!r}{did_you_mean(name, list(GROUPS))}; expected {', '.join(GROUPS)}, Cn for "
            "rotations or Dn for rotations and mirrors (for example C8 or D8), or a FiniteGroup."
        )
    return _registered(name, GROUPS[name])


@functools.lru_cache(maxsize=32)  # every layer of a network asks for the same one
def _of_family(family: str, n: int, clockwise: bool) -> FiniteGroup:
    return cyclic(n, clockwise=clockwise) if family == "C" else dihedral(n)


@functools.lru_cache(maxsize=32)
def _registered(name: str, make: Callable[[], FiniteGroup]) -> FiniteGroup:
    group = make()
    if not isinstance(group, FiniteGroup):
        raise ValueError(f"the group {name!r} is registered as a function that returns {group!r}, not a FiniteGroup.")
    return group


# Wallpaper groups by their point groups; z2, the translations alone, is also called p1.
for _name, _point_group in (
    ("z2", "C1"), ("p1", "C1"), ("p2", "C2"), ("p3", "C3"), ("p4", "C4"), ("p6", "C6"),
    ("pm", "D1"), ("pmm", "D2"), ("p4m", "D4"), ("p6m", "D6"),
):  # fmt: skip
    register_group(_name)(functools.partial(get_group, _point_group))


def _rotations(steps: NDArray[np.int64], order: int) -> NDArray[np.float64]:
    angle = 2 * np.pi * steps / order
    return np.stack([np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)], axis=-1).reshape(-1, 2, 2)


def _verified_order(n: int, family: str) -> int:
    order = whole_number(n)
    if order is None or order < 1:
        raise ValueError(f"{family}(n) expects a whole number of rotations n >= 1, got {n!r}.")
    return order
