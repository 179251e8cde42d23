from __future__ import annotations

import copy
import pickle
import re
import time

import numpy as np
import pytest

import coattend as ca
from tests.example_groups import ALL, quaternions, symmetric


@pytest.mark.parametrize("name", ALL)
def test_axioms_hold_for_all_triples(name: str) -> None:
    G = ALL[name]()
    p, n = G.product, G.order
    assert {int(v) for v in p.ravel()} == set(range(n))
    for g in range(n):
        assert p[0, g] == p[g, 0] == g
        assert p[g, G.inverse[g]] == p[G.inverse[g], g] == 0
        for h in range(n):
            assert G.relative[g, h] == p[G.inverse[g], h]
            for k in range(n):
                assert p[p[g, h], k] == p[g, p[h, k]]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([[0, 1], [1, 2]], r"not closed: 1 \* 1 = 2"),
        ([[0, 1, 2], [1, 2, 0]], "square"),
        (np.zeros((0, 0), dtype=int), "square"),
        ([[0, 1], [1]], "square, but its rows differ in length"),
        (None, r"square.*got shape \(\)"),
        (np.zeros((1025, 1025), dtype=int), "1025 elements; groups of up to 1024"),
        ([[0.0, 1.0], [1.0, 0.0]], "integer element indices, got dtype float64"),
        ([[1, 0], [0, 1]], "identity must be element 0, here it is element 1"),
        ([[0, 0], [1, 1]], r"no identity.*0 \* 1 = 0"),
        ([[0, 1], [1, 1]], "element 1 has no inverse"),
        (
            [[0, 1, 2, 3, 4], [1, 0, 3, 4, 2], [2, 4, 0, 1, 3], [3, 2, 4, 0, 1], [4, 3, 1, 2, 0]],
            r"not associative: \(1 \* 1\) \* 2 = 2, but 1 \* \(1 \* 2\) = 4",
        ),
    ],
)
def test_a_table_that_is_not_a_group_is_refused_with_the_failing_elements(table: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ca.FiniteGroup(table)


def test_every_single_wrong_entry_is_noticed() -> None:
    table = ca.dihedral(3).product
    for g in range(6):
        for h in range(6):
            for wrong in set(range(6)) - {int(table[g, h])}:
                broken = table.copy()
                broken[g, h] = wrong
                with pytest.raises(ValueError, match="identity|associative|inverse"):
                    ca.FiniteGroup(broken)


def test_a_planar_action_is_checked() -> None:
    table = ca.cyclic(4).product
    turns = ca.cyclic(4).planar
    with pytest.raises(ValueError, match=r"shape \(4, 2, 2\), got shape \(2, 2, 2\)"):
        ca.FiniteGroup(table, turns[:2])
    with pytest.raises(ValueError, match="element 2 is not orthogonal"):
        ca.FiniteGroup(table, turns * np.array([1, 1, 2, 1])[:, None, None])
    for beyond in (np.nan, np.inf, 1e200):
        with pytest.raises(ValueError, match=r"element 2 is not orthogonal: \[\[(nan|-inf|-1e\+200), "):
            ca.FiniteGroup(table, np.where(np.arange(4)[:, None, None] == 2, beyond * np.sign(turns + 1e-9), turns))
    with pytest.raises(ValueError, match=r"not a homomorphism: 1 \* 1 = 2"):
        ca.FiniteGroup(table, turns[[0, 1, 0, 1]])
    with pytest.raises(ValueError, match="one 2 x 2 matrix per element, shape \\(4, 2, 2\\), of numbers"):
        ca.FiniteGroup(table, [[1, 2], [3]])
    assert ca.FiniteGroup(table, turns) == ca.cyclic(4)


def test_subgroups_of_d4_are_the_ten_that_textbooks_list() -> None:
    subgroups = ca.dihedral(4).subgroups()
    assert [len(k) for k in subgroups] == [1, 2, 2, 2, 2, 2, 4, 4, 4, 8]
    assert (0, 1, 2, 3) in subgroups
    assert len(symmetric(3).subgroups()) == 6
    assert len(quaternions().subgroups()) == 6


@pytest.mark.parametrize("name", ["C6", "D4", "D6"])
def test_cosets_partition_the_group_and_the_group_acts_on_them(name: str) -> None:
    G = ca.get_group(name)
    for K in G.subgroups():
        left, right = G.left_cosets(K), G.right_cosets(K)
        for cosets in (left, right):
            assert sorted(cosets.ravel().tolist()) == list(G.elements)
            assert cosets.shape == (G.order // len(K), len(K))
        rows = {frozenset(row.tolist()) for row in left}
        assert rows == {frozenset(int(G.product[g, k]) for k in K) for g in G.elements}
        assert G.is_normal(K) == (rows == {frozenset(row.tolist()) for row in right})
        action = G.coset_action(K)
        for g in G.elements:
            for i, row in enumerate(left):
                assert {int(G.product[g, a]) for a in row} == set(left[action[g, i]].tolist())


def test_generate_restrict_and_refusal_of_what_is_not_a_subgroup() -> None:
    G = ca.dihedral(4)
    assert G.generate([1]) == (0, 1, 2, 3)
    assert G.generate([]) == (0,)
    assert G.generate([1, 4]) == tuple(range(8))
    assert G.restrict((0, 1, 2, 3)) == ca.cyclic(4)
    assert not G.is_normal((0, 4))
    assert G.is_normal((0, 2))
    with pytest.raises(ValueError, match=r"1 \* 1 = 2 is missing.*\[0, 1, 2, 3\]"):
        G.left_cosets([0, 1])
    with pytest.raises(ValueError, match="elements 0 to 7, got 8"):
        G.generate([8])
    with pytest.raises(ValueError, match="at least the identity"):
        G.left_cosets([])


@pytest.mark.parametrize("name", ["D4", "Q8"])
def test_groups_are_values(name: str) -> None:
    G = ALL[name]()
    for other in (ALL[name](), pickle.loads(pickle.dumps(G)), copy.deepcopy(G)):
        assert other == G
        assert hash(other) == hash(G)
        assert other.name == G.name
    assert ca.cyclic(8) != G
    assert ca.cyclic(4) != ca.cyclic(4, clockwise=True)


def test_arrays_are_read_only_so_that_equal_groups_stay_equal() -> None:
    G = ca.dihedral(4)
    before = hash(G)
    for array in (G.product, G.inverse, G.planar, G.relative, G.restrict((0, 4)).planar):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    assert hash(G) == before
    table = np.array([[0, 1], [1, 0]])
    Z2 = ca.FiniteGroup(table)
    table[1, 1] = 1
    assert Z2.product[1, 1] == 0


def latin_square_without_associativity(order: int) -> np.ndarray:
    """A cyclic group with two equal 2 x 2 squares of its table exchanged: rows and columns stay permutations."""
    table = ca.cyclic(order).product.copy()
    half = order // 2
    for a, b in ((1, 2), (1, 2 + half), (1 + half, 2), (1 + half, 2 + half)):
        table[a, b] = (table[a, b] + half) % order
    return table


def test_a_single_exchange_in_a_latin_square_is_noticed() -> None:
    for order in (6, 8, 12, 64):
        table = latin_square_without_associativity(order)
        assert (np.sort(table, axis=0) == np.arange(order)[:, None]).all()
        with pytest.raises(ValueError, match="not associative") as refusal:
            ca.FiniteGroup(table)
        x, a, y = (int(n) for n in re.search(r"\((\d+) \* (\d+)\) \* (\d+)", str(refusal.value)).groups())
        assert table[table[x, a], y] != table[x, table[a, y]]


def test_large_groups_are_verified_quickly() -> None:
    """A safety net far above the measured half second for 1024 elements; looking at all triples took minutes."""
    start = time.process_time()
    assert ca.cyclic(1024).order == ca.dihedral(512).order == ca.direct_product("C32", "C32").order == 1024
    assert time.process_time() - start < 10


@pytest.mark.parametrize("wrong", [9, -1, 1.0, True, None, "1", float("nan")])
def test_only_indices_are_elements(wrong: object) -> None:
    G = ca.cyclic(4)
    for use in (
        G.describe,
        lambda g: G.generate([g]),
        lambda g: G.left_cosets((0, g)),
        lambda g: ca.nn.GroupPool(G, over=(0, g)),
    ):
        with pytest.raises(ValueError, match="C4 has elements 0 to 3, got"):
            use(wrong)
    for use in (G.generate, G.restrict, lambda elements: ca.nn.GroupPool(G, over=elements)):
        with pytest.raises(ValueError, match=r"expected several elements of C4, such as \(0,\), got 2"):
            use(2)
    assert G.generate(np.array([2])) == (0, 2)
    assert G.describe(np.int64(1)) == "turn 90°"


def test_angles_and_mirrors_are_those_of_the_numbering() -> None:
    G = ca.dihedral(8)
    assert [G.angle(g) for g in G.elements] == [45.0 * r for _ in range(2) for r in range(8)]
    assert G.mirrored.tolist() == [False] * 8 + [True] * 8
    assert [ca.cyclic(4, clockwise=True).angle(g) for g in range(4)] == [0, 270, 180, 90]
    assert not quaternions().mirrored.any()
    with pytest.raises(ValueError, match="Q8 has no planar action"):
        quaternions().angle(1)
