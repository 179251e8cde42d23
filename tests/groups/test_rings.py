"""Steerable filters: against integrals of scipy, under rotations and mirrors, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import coattend as ca
from coattend.groups import filter_turns, transform_image
from tests import filter_oracle

Rings = ca.Rings
EVERY_KERNEL = range(1, 12)


@pytest.mark.parametrize(("name", "k"), [("C8", 3), ("D8", 4), ("C6", 5), ("D6", 5), ("C8 clockwise", 3), ("D3", 6)])
def test_fitted_functions_are_those_of_the_integrals(name: str, k: int) -> None:
    G = ca.get_group(name)
    orders = {3: (0, 2), 4: (0, 2), 5: (0, 2, 4), 6: (1, 2, 2)}[k]
    turns = filter_turns(G, k, Rings(orders, 0.4)).numpy()
    for g in G.elements:
        np.testing.assert_allclose(turns[g], filter_oracle.ring_turn(k, orders, 0.4, G.planar[g]), atol=1e-9)


@pytest.mark.parametrize("k", EVERY_KERNEL)
def test_default_rings(k: int) -> None:
    size = {1: 1, 2: 3, 3: 6, 4: 6, 5: 11, 6: 11, 7: 16, 8: 16, 9: 21, 10: 21, 11: 26}[k]
    turns = filter_turns("D8", k, "steerable")
    assert turns.shape == (16, k * k, size)
    assert torch.linalg.matrix_rank(turns.flatten(0, 1)) == size  # no coefficient is redundant
    rings = Rings((1,)) if k == 2 else Rings((0, *[2] * ((k - 1) // 2)))
    assert torch.equal(turns, filter_turns("D8", k, rings))
    # Columns of one function have norm 1 together, on which the initialisation relies.
    torch.testing.assert_close(turns[0].square().sum(), torch.tensor(float(rings.functions)))


@pytest.mark.parametrize("rings", [Rings((0, 2, 2)), Rings((0, 2, 2), 0.6, sampled=True)])
@pytest.mark.parametrize("name", ["C4", "D4", "C8", "D8", "C16", "D16", "C6", "C3"])
def test_exact_elements_permute_the_taps_bit_for_bit(name: str, rings: ca.Rings) -> None:
    G, k = ca.get_group(name), 5
    turns = filter_turns(G, k, rings)
    for h in G.exact_elements:
        for g in G.elements:
            images = turns[g].T.reshape(-1, k, k)
            assert torch.equal(transform_image(images, G, h).flatten(1), turns[G.product[h, g]].T)


def test_a_pose_changes_phases_only() -> None:
    """The filters in all poses are one space, closed under the group: pose g is a rotation of coefficients."""
    turns = filter_turns("D16", 7, "steerable")
    for g in range(32):
        coefficients = torch.linalg.lstsq(turns[0], turns[g]).solution
        torch.testing.assert_close(turns[0] @ coefficients, turns[g], rtol=0, atol=1e-9)


def test_sampled_functions_are_those_of_the_formula() -> None:
    turns, k = filter_turns("C8", 5, Rings((0, 1), 0.5, sampled=True))[0].numpy(), 5
    x, y = filter_oracle.taps(k).T
    r, phi = np.hypot(x, y), np.arctan2(y, x)
    columns = [np.exp(-(r**2) / 0.5), np.exp(-((r - 1) ** 2) / 0.5)]
    wave = np.where(r > 0, np.exp(-((r - 1) ** 2) / 0.5), 0) * np.exp(1j * phi)
    columns = [c / np.linalg.norm(c) for c in [*columns, wave]]
    np.testing.assert_allclose(turns, np.stack([*columns[:2], columns[2].real, columns[2].imag], -1), atol=1e-12)


def test_text_of_rings() -> None:
    for rings, text in {
        Rings((0, 2, 2)): "0-2-2",
        Rings((3,)): "3",
        Rings((0, 2), 0.5): "0-2-width-0.5",
        Rings((0, 2), sampled=True): "0-2-sampled",
        Rings((0, 2), 1, sampled=True): "0-2-width-1.0-sampled",
    }.items():
        assert str(rings) == text
        assert Rings.parse(text) == rings
    with pytest.raises(ValueError, match="such as 0-2-2 or 0-2-2-width-0.5, got '0-x'"):
        Rings.parse("0-x")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rings(()), r"one ring or more, .*got \(\)"),
        (lambda: Rings((0, -1)), r"whole numbers from 0 to 32, got \(0, -1\)"),
        (lambda: Rings((0, 1.5)), r"got \(0, 1.5\)"),
        (lambda: Rings("0-2"), "got '0-2'"),
        (lambda: Rings((0, 2), 0), "width from 0.1 to 4 pixels, got 0"),
        (lambda: Rings((0, 2), float("nan")), "got nan"),
        (lambda: Rings((0, 2), True), "got True"),
        (lambda: filter_turns("C8", 3, Rings((0, 2, 2))), "3 rings do not fit a kernel of 3 x 3, which has room for 2"),
        (lambda: filter_turns("C8", 1, Rings((1,), sampled=True)), "1 x 1 is too small for order 1"),
        (lambda: filter_turns("C8", 3, (0, 2)), r"'free', 'steerable'.*or Rings\(orders=...\), got \(0, 2\)"),
    ],
)
def test_refusals(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
