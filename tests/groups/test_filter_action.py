from __future__ import annotations

import numpy as np
import pytest
import torch

import coattend as ca
from coattend.groups import filter_turns, transform_image
from tests import filter_oracle
from tests.example_groups import EXACT, quaternions


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 7])
def test_exact_groups_permute_taps_as_they_move_images(name: str, k: int) -> None:
    G, f = ca.get_group(name), torch.randn(k, k)
    turns = filter_turns(G, k)
    assert not turns.is_floating_point()
    for g in G.elements:
        assert torch.equal(f.flatten()[turns[g]].view(k, k), transform_image(f, G, g))


@pytest.mark.parametrize("name", ["C8", "D8", "C6", "C3", "D6", "C16", "D16"])
@pytest.mark.parametrize("filters", ["free", "bilinear", "bicubic"])
@pytest.mark.parametrize("k", [3, 4, 5, 7])
def test_maps_follow_the_exact_subgroup_bit_for_bit(name: str, filters: str, k: int) -> None:
    G = ca.get_group(name)
    turns = filter_turns(G, k, filters)
    subgroups = {"C8": "C4", "D8": "D4", "C6": "C2", "C3": "C1", "D6": "D2", "C16": "C4", "D16": "D4"}
    exact = ca.get_group(subgroups[name])
    assert len(G.exact_elements) == exact.order
    for h in G.exact_elements:
        for g in G.elements:
            images = turns[g].T.view(k * k, k, k)  # the turned copies of all filters with a single tap
            assert torch.equal(transform_image(images, G, h).flatten(1), turns[G.product[h, g]].T)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_interpolation_reproduces_a_smooth_function(interpolation: str) -> None:
    """Away from the rim, a filter sampled from a linear function turns into the turned linear function."""
    G, k = ca.cyclic(8), 7
    turns = filter_turns(G, k, interpolation)
    steps = np.arange(k) - 3.0
    x, y = np.meshgrid(steps, -steps)
    inner = torch.tensor(np.hypot(x, y).ravel() < 1.4)
    for g in G.elements:
        slope = np.array([0.7, -0.3])
        base = torch.tensor((slope[0] * x + slope[1] * y).ravel())
        turned = G.planar[g] @ slope
        expected = torch.tensor((turned[0] * x + turned[1] * y).ravel())
        torch.testing.assert_close((turns[g] @ base)[inner], expected[inner])


@pytest.mark.parametrize(("name", "k"), [("C8", 3), ("D8", 4), ("C6", 5), ("C16 clockwise", 7), ("C3", 11), ("D5", 10)])
def test_free_filters_turn_by_the_best_linear_map(name: str, k: int) -> None:
    G = ca.get_group(name)
    turns = filter_turns(G, k).numpy()
    for g in list(G.elements)[:: max(1, G.order // 6)]:
        np.testing.assert_allclose(turns[g], filter_oracle.free_turn(k, G.planar[g]), atol=1e-9)


@pytest.mark.parametrize("k", range(1, 12))
def test_taps_of_a_turned_filter_have_the_sum_of_the_filter(k: int) -> None:
    turns = filter_turns("D8", k)
    sums = turns.sum(dim=1)
    torch.testing.assert_close(sums, (turns[0].diagonal() != 0).double().expand_as(sums), rtol=0, atol=1e-11)
    bicubic = filter_turns("D8", 7, "bicubic").sum(dim=1)
    assert (bicubic - 1).abs().max() > 0.3  # what neighbours beyond the disc would have added is lost


@pytest.mark.parametrize("filters", ["free", "bicubic"])
def test_nothing_outside_the_disc_counts(filters: str) -> None:
    turns = filter_turns(ca.cyclic(8), 5, filters)
    corners = [0, 4, 20, 24]
    assert (turns[:, corners] == 0).all()
    assert (turns[:, :, corners] == 0).all()
    assert torch.equal(
        turns[0].diagonal().nonzero().flatten(), torch.tensor([i for i in range(25) if i not in corners])
    )


def test_refusals() -> None:
    with pytest.raises(ValueError, match="bare table.*planar"):
        filter_turns(quaternions(), 3)
    with pytest.raises(ValueError, match="'free', 'steerable', 'bicubic', 'bilinear'.*Rings.*'nearest'"):
        filter_turns(ca.cyclic(8), 3, "nearest")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("C8", None), "kernel_size must be a whole number of at least 1, got None"),
        (("C8", 0), "at least 1, got 0"),
        (("C8", 3000), "a 3000 x 3000 kernel in 8 poses needs a table of 648000000000000 numbers"),
        ((None, 3), "expected a group or a group's name"),
    ],
)
def test_wrong_arguments_are_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        filter_turns(*arguments)
