from __future__ import annotations

import pytest
import torch

import coattend as ca
from tests.example_groups import BARE, EXACT

nn = ca.nn


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("size", [(8, 8), (6, 10)])
def test_every_layer_commutes_with_every_element(name: str, size: tuple[int, int]) -> None:
    G = ca.get_group(name)
    odd = (size[0] + 1, size[1] + 1)
    for layer, at in (
        (nn.SpatialMaxPool2d(2), size),
        (nn.SpatialAvgPool2d(2), size),
        (nn.SpatialMaxPool2d(3, stride=2, padding=1), odd),
        (nn.SpatialAvgPool2d(3, stride=2, padding=1), odd),
        (nn.SpatialMaxPool2d(3, stride=1), size),
        (nn.SpatialUpsample2d(2), size),
        (nn.SpatialUpsample2d(3, mode="bilinear"), size),
        (nn.SpatialUpsample2d(2, mode="bicubic"), size),
        (nn.GroupPool(G, "max"), size),
        (nn.GroupPool(G, "mean"), size),
        (nn.GroupPool(G, "sum"), size),
        (nn.GroupDropout2d(0.5), size),
    ):
        ca.assert_equivariant(layer, torch.randn(2, 3, G.order, *at), G, tol=1e-12)


@pytest.mark.parametrize("name", [*EXACT, *BARE])
@pytest.mark.parametrize("reduce", ["max", "mean", "sum"])
def test_coset_pooling_commutes_for_every_subgroup(name: str, reduce: str) -> None:
    """Normal or not: D4 over a mirror is among them."""
    G = BARE[name]() if name in BARE else ca.get_group(name)
    for K in G.subgroups():
        pool = nn.GroupPool(G, reduce, over=K)
        x = torch.randn(1, 2, G.order, 3, 4)
        assert pool(x).shape == (1, 2, G.order // len(K), 3, 4)
        ca.assert_equivariant(pool, x, G, tol=1e-12)


def test_cosets_are_pooled_in_the_documented_order() -> None:
    G, x = ca.dihedral(4), torch.randn(1, 2, 8, 3, 3)
    assert not G.is_normal((0, 4))
    y = nn.GroupPool(G, "max", over=(0, 4))(x)
    for r in range(4):  # R^r {1, M} = {r, 4 + r}
        assert torch.equal(y[:, :, r], torch.maximum(x[:, :, r], x[:, :, 4 + r]))
    assert torch.equal(nn.GroupPool(G, "sum", over=range(8))(x).squeeze(2), nn.GroupPool(G, "sum")(x))


def test_right_cosets_would_not_commute() -> None:
    G, x = ca.dihedral(4), torch.randn(1, 2, 8, 3, 3)

    class RightCosets(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, :, G.right_cosets((0, 4))].amax(3)

    with pytest.raises(AssertionError):
        ca.assert_equivariant(RightCosets(), x, G, over=(0, 4))


def test_a_coset_pooled_map_feeds_layers_over_the_rotations() -> None:
    """D4 pooled over a mirror is numbered like C4, and C4 goes on acting on it."""
    net = torch.nn.Sequential(
        nn.LiftingConv2d(1, 3, 3, "p4m"), nn.GroupPool("p4m", "mean", over=(0, 4)), nn.GroupConv2d(3, 2, 3, "p4")
    )
    ca.assert_equivariant(net, torch.randn(1, 1, 9, 9), "p4")


def test_stride_that_does_not_divide_is_not_exact() -> None:
    x = torch.randn(1, 2, 4, 7, 7)
    assert max(ca.equivariance_error(nn.SpatialMaxPool2d(2), x, "p4").values()) > 0.1


def test_whole_map_dropout_drops_all_poses_of_a_channel_and_elementwise_single_ones() -> None:
    x = torch.ones(50, 20, 4, 3, 3)
    whole = nn.GroupDropout2d(0.5)(x)
    kept = whole.flatten(2)
    assert ((kept == 0).all(2) | (kept == 2).all(2)).all()
    assert 0.4 < (kept[:, :, 0] == 0).double().mean() < 0.6
    single = nn.GroupDropout2d(0.5, elementwise=True)(x).flatten(2)
    assert not ((single == 0).all(2) | (single == 2).all(2)).any()
    assert torch.equal(nn.GroupDropout2d(0.5).eval()(x), x)


def test_whole_map_dropout_keeps_each_drawn_network_equivariant() -> None:
    G, x = ca.dihedral(4), torch.randn(4, 8, 8, 3, 3)
    drop = nn.GroupDropout2d(0.5)
    for g in G.elements:
        torch.manual_seed(1)
        y = drop(x)
        torch.manual_seed(1)
        assert torch.equal(drop(ca.groups.transform_map(x, G, g)), ca.groups.transform_map(y, G, g))
