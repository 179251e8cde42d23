"""Self-attention over poses as a layer."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import coattend as ca
from coattend.functional import pose_attention_weights, pose_self_attention
from tests.example_groups import BARE, EXACT, LARGE, octahedral

nn = ca.nn


def strong(channels: int, group: ca.FiniteGroup, heads: int = 2) -> nn.PoseSelfAttention:
    layer = nn.PoseSelfAttention(channels, group, heads)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("size", [(5, 5), (4, 7)])
def test_commutes_with_every_element(name: str, size: tuple[int, int]) -> None:
    G = ca.get_group(name)
    ca.assert_equivariant(strong(4, G), torch.randn(2, 4, G.order, *size), G, tol=1e-12)


@pytest.mark.parametrize("name", [*BARE, *LARGE])
def test_needs_no_planar_action(name: str) -> None:
    G = {**BARE, **LARGE}[name]()
    bare = ca.FiniteGroup(G.product)  # without the action: nothing to interpolate
    ca.assert_equivariant(strong(4, bare), torch.randn(2, 4, G.order, 4, 3), bare, tol=1e-12)


def test_acts_on_volumes() -> None:
    G = octahedral()
    ca.assert_equivariant(strong(2, G), torch.randn(1, 2, G.order, 3, 3, 3), G, tol=1e-12)


class AbsolutePose(nn.PoseSelfAttention):
    """With a bias per pair of poses instead of one per relative pose."""

    def _matrices(self) -> tuple[Tensor, Tensor]:
        bank, bias = super()._matrices()
        return bank, bias + torch.linspace(-3, 3, bias.numel()).view(bias.shape)


class AbsoluteQuery(nn.PoseSelfAttention):
    """With a query that each pose learns for itself."""

    def _matrices(self) -> tuple[Tensor, Tensor]:
        bank, bias = super()._matrices()
        return bank * torch.linspace(0.1, 2, len(bank))[:, None], bias


@pytest.mark.parametrize("form", [AbsolutePose, AbsoluteQuery])
@pytest.mark.parametrize("name", ["C4", "D4", "C2 x D4"])
def test_what_depends_on_the_pose_itself_breaks_every_element(form: type, name: str) -> None:
    G = BARE[name]() if name in BARE else ca.get_group(name)
    layer = form(4, G, 2)
    errors = ca.equivariance_error(layer, torch.randn(2, 4, G.order, 5, 5), G)
    assert all(errors[g] > 1e-3 for g in G.elements if g != 0)


def test_equals_the_function() -> None:
    G, x = ca.dihedral(4), torch.randn(2, 4, 8, 5, 5)
    layer = strong(4, G)
    assert torch.equal(layer(x), pose_self_attention(x, layer.weight, layer.bias, G))
    assert torch.equal(layer.attention(x), pose_attention_weights(x, layer.weight, layer.bias, G))


def test_a_new_layer_gives_a_pose_half_of_its_own_attention() -> None:
    layer = nn.PoseSelfAttention(3, "p4m")
    torch.nn.init.zeros_(layer.weight)
    weights = layer.attention(torch.randn(1, 3, 8, 1, 1))[0, 0, ..., 0, 0]
    assert layer.bias[0, 0].item() == math.log(7)
    torch.testing.assert_close(weights.diagonal(), torch.full((8,), 0.5))
    torch.testing.assert_close(weights.sum(-1), torch.ones(8))


def test_parameters_and_pictures() -> None:
    layer, x = nn.PoseSelfAttention(6, "p4", heads=3), torch.randn(2, 6, 4, 5, 5)
    assert sum(p.numel() for p in layer.parameters()) == 3 * 6 * 6 * 4 + 3 * 4
    shares = layer.shares(x)
    assert shares.shape == x.shape
    torch.testing.assert_close(shares.sum(2), torch.ones(2, 6, 5, 5))
    assert torch.equal(shares[:, 0], shares[:, 1])
    matrix = layer.matrix()
    assert matrix.shape == (3, 4, 4)
    assert matrix[1, 2, 3] == layer.bias[1, 3]  # source 2, target 3: the relative pose 3^-1 2 of C4
    moved = ca.groups.transform_map(x, layer.group, 1)
    torch.testing.assert_close(layer.shares(moved), ca.groups.transform_map(shares, layer.group, 1))


def test_wrong_arguments_are_answered() -> None:
    with pytest.raises(ValueError, match="PoseSelfAttention expects heads that divide its 4 channels, got 3"):
        nn.PoseSelfAttention(4, "p4", heads=3)
    with pytest.raises(ValueError, match=r"PoseSelfAttention expects a map \(batch, channels=4, group=4"):
        nn.PoseSelfAttention(4, "p4")(torch.randn(1, 4, 8, 5, 5))
