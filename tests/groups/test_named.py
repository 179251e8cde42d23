from __future__ import annotations

import numpy as np
import pytest

import coattend as ca
from coattend.groups.named import GROUPS


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 8, 16])
def test_tables_follow_from_the_matrices(n: int) -> None:
    """The tables are written in integers; the matrices of the plane are the independent witness."""
    for G in (ca.cyclic(n), ca.cyclic(n, clockwise=True), ca.dihedral(n)):
        for g in G.elements:
            for h in G.elements:
                both = G.planar[g] @ G.planar[h]
                distance = np.abs(G.planar - both).sum(axis=(1, 2))
                assert distance.argmin() == G.product[g, h] or n <= 2
                assert distance[G.product[g, h]] < 1e-12


def test_elements_are_numbered_as_documented() -> None:
    turn = ca.cyclic(8).planar[1]
    assert np.allclose(turn @ [1, 0], [np.sqrt(0.5), np.sqrt(0.5)])  # counter-clockwise, y up
    assert np.allclose(ca.cyclic(8, clockwise=True).planar[1] @ [1, 0], [np.sqrt(0.5), -np.sqrt(0.5)])
    D4 = ca.dihedral(4)
    mirror, quarter = np.diag([-1.0, 1.0]), D4.planar[1]
    for r in range(4):
        assert (D4.planar[4 + r] == np.linalg.matrix_power(quarter, r) @ mirror).all()
    assert D4.describe(0) == "identity"
    assert D4.describe(1) == "turn 90°"
    assert D4.describe(4) == "mirror"
    assert D4.describe(7) == "mirror, turn 270°"
    assert ca.cyclic(4, clockwise=True).describe(1) == "turn 270°"
    assert ca.direct_product(ca.cyclic(2), ca.cyclic(2)).describe(3) == "element 3"


def test_direct_product_multiplies_componentwise() -> None:
    a, b = ca.dihedral(3), ca.cyclic(4)
    G = ca.direct_product(a, b)
    for g in G.elements:
        for h in G.elements:
            i, j = divmod(int(G.product[g, h]), b.order)
            assert (i, j) == (a.product[g // 4, h // 4], b.product[g % 4, h % 4])
    assert G.planar is None
    shared = ca.direct_product(ca.cyclic(2), ca.cyclic(4), planar=np.concatenate([ca.cyclic(4).planar] * 2))
    assert shared.planar is not None


@pytest.mark.parametrize(
    ("name", "order", "equal"),
    [
        ("z2", 1, "C1"),
        ("p4", 4, "C4"),
        ("P4M", 8, "D4"),
        ("c8", 8, "C8"),
        ("D6", 12, "d6"),
        ("p2", 2, "C2"),
        ("p6m", 12, "D6"),
        ("pm", 2, "D1"),
    ],
)
def test_groups_by_name(name: str, order: int, equal: str) -> None:
    assert ca.get_group(name).order == order
    assert ca.get_group(name) == ca.get_group(equal)
    assert ca.get_group(ca.get_group(name)) == ca.get_group(name)


@pytest.mark.parametrize("bad", ["C0", "D-1", "p5", "C", "", 4, None])
def test_unknown_names_are_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="group"):
        ca.get_group(bad)


@pytest.mark.parametrize("family", [ca.cyclic, ca.dihedral])
@pytest.mark.parametrize("bad", [0, -1, 2.0, "4", True])
def test_orders_are_whole_and_positive(family: object, bad: object) -> None:
    with pytest.raises(ValueError, match="n >= 1, got"):
        family(bad)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ca.cyclic(2000),
        lambda: ca.cyclic(10**9),
        lambda: ca.dihedral(513),
        lambda: ca.direct_product(ca.cyclic(1024), "C2"),
        lambda: ca.get_group("C100000"),
        lambda: ca.nn.LiftingConv2d(1, 1, 3, "C1000000"),
    ],
)
def test_groups_too_large_to_use_are_refused_before_anything_is_allocated(make: object) -> None:
    with pytest.raises(ValueError, match="elements; groups of up to 1024 elements are supported"):
        make()


def test_names_of_endless_digits_and_factors_that_are_no_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown group"):
        ca.get_group("C" + "9" * 5000)
    with pytest.raises(ValueError, match="expected a group or a group's name, got NoneType"):
        ca.direct_product(None, ca.cyclic(2))
    assert ca.cyclic(np.int64(4)) == ca.direct_product("C1", "C4", planar=ca.cyclic(4).planar)


def test_registered_groups_are_known_by_name_everywhere() -> None:
    made = []

    @ca.register_group("Rectangle")
    def rectangle() -> ca.FiniteGroup:
        made.append(1)
        return ca.dihedral(2)

    try:
        assert ca.get_group("rectangle") == ca.get_group("RECTANGLE") == ca.dihedral(2)
        assert made == [1]
        assert ca.nn.LiftingConv2d(1, 1, 3, "rectangle").group == ca.dihedral(2)
        with pytest.raises(ValueError, match="unknown group 'rectangel' .did you mean rectangle.*z2, p1"):
            ca.get_group("rectangel")
        with pytest.raises(ValueError, match="there is a group 'rectangle' already"):
            ca.register_group("rectangle")(lambda: ca.cyclic(1))
    finally:
        GROUPS.remove("rectangle")
    with pytest.raises(ValueError, match="unknown group 'rectangle'"):
        ca.get_group("rectangle")


@pytest.mark.parametrize("name", ["C4", "d6", "c4 clockwise", "p4m", "", None])
def test_names_that_mean_something_else_are_refused(name: object) -> None:
    with pytest.raises(ValueError, match="name of a cyclic or dihedral group|already|is registered under a name"):
        ca.register_group(name)(lambda: ca.cyclic(1))


def test_a_registration_that_is_not_a_group_says_so() -> None:
    with pytest.raises(ValueError, match="expects a function that returns a group, got FiniteGroup"):
        ca.register_group("group")(ca.cyclic(2))
    ca.register_group("number")(lambda: 4)
    try:
        with pytest.raises(ValueError, match="'number' is registered as a function that returns 4"):
            ca.get_group("number")
    finally:
        GROUPS.remove("number")
