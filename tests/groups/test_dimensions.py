"""Actions on signals and volumes: 1-D reflection, the rotations of the cube in 3-D, checked against numpy."""

from __future__ import annotations

import copy
import itertools
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor

import coattend as ca
from coattend.groups import filter_turns, transform_image, transform_map
from tests.example_groups import octahedral, reflection

nn = ca.nn


GROUPS = {"reflection": reflection, "O": octahedral, "Oh": lambda: octahedral(reflections=True)}
SIZES = {1: (5,), 3: (3, 4, 5)}


def moved(x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """(g.x)(u) = x(g^-1 u), voxel by voxel; x along the last axis, all other coordinates against theirs."""
    d = len(matrix)
    sign = np.array([1.0] + [-1.0] * (d - 1))
    size = np.array(x.shape[::-1])
    new_size = np.rint(np.abs(matrix) @ size).astype(int)
    y = np.empty(new_size[::-1])
    for target in itertools.product(*map(range, new_size)):
        u = sign * (np.array(target) - (new_size - 1) / 2)
        source = np.rint(sign * (matrix.T @ u) + (size - 1) / 2).astype(int)
        y[tuple(target)[::-1]] = x[tuple(source)[::-1]]
    return y


@pytest.mark.parametrize("name", GROUPS)
def test_the_axioms_hold_and_every_element_is_exact(name: str) -> None:
    G = GROUPS[name]()
    assert G.order == {"reflection": 2, "O": 24, "Oh": 48}[name]
    assert G.dimension == G.action.shape[-1] == (1 if name == "reflection" else 3)
    assert G.planar is None
    assert G.is_exact
    np.testing.assert_array_equal(G.action[G.product], np.einsum("gij,hjk->ghik", G.action, G.action))
    np.testing.assert_array_equal(G.action[G.inverse], G.action.transpose(0, 2, 1))
    assert all(G.product[G.product[g, h], G.inverse[h]] == g for g in G.elements for h in G.elements)


@pytest.mark.parametrize("name", ["reflection", "O"])
def test_groups_are_values_in_any_dimension(name: str) -> None:
    G = GROUPS[name]()
    for other in (GROUPS[name](), pickle.loads(pickle.dumps(G)), copy.deepcopy(G)):
        assert (other, hash(other), other.name) == (G, hash(G), G.name)
    assert ca.FiniteGroup(G.product) != G
    assert repr(G) == f"FiniteGroup({name}, order={G.order}, dimension={G.dimension})"
    assert G.restrict(G.generate([1])).dimension == G.dimension
    with pytest.raises(ValueError, match="read-only"):
        G.action[0] = 1


@pytest.mark.parametrize("name", GROUPS)
def test_images_move_voxel_by_voxel_as_defined(name: str) -> None:
    G = GROUPS[name]()
    x = np.random.default_rng(0).normal(size=(2, *SIZES[G.dimension]))
    for g in G.elements:
        expected = np.stack([moved(volume, G.action[g]) for volume in x])
        assert torch.equal(transform_image(torch.tensor(x), G, g), torch.tensor(expected))


def test_the_convention_in_three_dimensions_is_right_handed() -> None:
    """A quarter turn about z, towards the viewer, turns every slice as p4 does."""
    turn = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    G = octahedral()
    g = next(g for g in G.elements if (G.action[g] == turn).all())
    x = torch.randn(3, 4, 4)
    assert torch.equal(transform_image(x, G, g), torch.rot90(x, 1, (-2, -1)))


@pytest.mark.parametrize("name", ["reflection", "O"])
def test_maps_and_images_compose_like_the_elements(name: str) -> None:
    G = GROUPS[name]()
    image = torch.randn(2, *SIZES[G.dimension])
    maps = torch.randn(1, 2, G.order, *SIZES[G.dimension])
    for g, h in itertools.product(list(G.elements)[:8], G.elements):
        gh = int(G.product[g, h])
        assert torch.equal(transform_image(transform_image(image, G, h), G, g), transform_image(image, G, gh))
        assert torch.equal(transform_map(transform_map(maps, G, h), G, g), transform_map(maps, G, gh))
    for g in G.elements:
        for h in (0, G.order - 1):
            source = maps[:, :, G.product[G.inverse[g], h]]
            assert torch.equal(transform_map(maps, G, g)[:, :, h], transform_image(source, G, g))


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_tables_of_taps_move_filters_as_images(name: str, k: int) -> None:
    G = GROUPS[name]()
    turns = filter_turns(G, k)
    assert turns.shape == (G.order, k**G.dimension)
    f = torch.randn([k] * G.dimension)
    for g in G.elements:
        assert torch.equal(f.flatten()[turns[g]].view(f.shape), transform_image(f, G, g))


@pytest.mark.parametrize("name", ["reflection", "O"])
def test_co_attention_is_the_formula_and_commutes(name: str) -> None:
    G = GROUPS[name]()
    layer = nn.CoAttention(3, G)
    x = torch.randn(2, 3, G.order, *SIZES[G.dimension])
    a, values = layer.weight.detach().numpy(), x.numpy()
    matrix = np.stack([a[:, G.relative[g]] for g in G.elements], axis=-1)  # A[c, h, g] = a[c, g^-1 h]
    logits = np.einsum("bch...,chg->bcg...", values, matrix) / G.order
    mask = np.exp(logits - logits.max(axis=2, keepdims=True))
    torch.testing.assert_close(layer.mask(x).detach(), torch.tensor(mask), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(layer(x).detach(), torch.tensor(mask * values), rtol=1e-12, atol=1e-12)
    ca.assert_equivariant(layer, x, G, tol=1e-12)
    pool = nn.GroupPool(G, "max")
    assert torch.equal(pool(x), x.amax(2))
    ca.assert_equivariant(torch.nn.Sequential(layer, pool), x, G, tol=1e-12)


class FirstAxisOnly(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(2)


def test_the_checker_takes_ranks_from_the_dimension() -> None:
    G = octahedral()
    volume = torch.randn(1, 2, 4, 4, 4)  # five axes: an image for a 3-D action, not a map
    ca.assert_equivariant(torch.nn.ReLU(), volume, G, tol=1e-12)
    assert max(ca.equivariance_error(FirstAxisOnly(), volume, G).values()) > 0.1
    assert not ca.diagnose(torch.nn.Sequential(torch.nn.Conv3d(2, 2, 3)), volume, G).is_equivariant
    signal = torch.randn(3, 2, 6)
    assert ca.equivariance_error(FirstAxisOnly(), signal, reflection())[1] > 0.1
    ca.assert_equivariant(torch.nn.AvgPool1d(2), signal, reflection(), tol=1e-12)
    with pytest.raises(ValueError, match="cannot be laid out as 'map' over reflection"):
        ca.equivariance_error(torch.nn.ReLU(), torch.randn(1, 2, 6), reflection(), input_layout="map")


@pytest.mark.parametrize(
    "make",
    [
        lambda G: nn.LiftingConv2d(1, 2, 3, G),
        lambda G: nn.GroupConv2d(1, 2, 3, G),
        lambda G: nn.ProjectionConv2d(1, 2, 3, G),
        lambda G: nn.SliceCoAttentiveConv2d(1, 2, 3, G),
    ],
)
def test_spatial_layers_refuse_other_dimensions(make: object) -> None:
    with pytest.raises(ValueError, match="Conv2d moves images, and O acts on 3 dimensions; pass a group with a planar"):
        make(octahedral())
    with pytest.raises(ValueError, match="reflection acts on 1 dimensions"):
        make(reflection())


def test_wrong_ranks_and_actions_are_refused_by_name() -> None:
    G = octahedral()
    with pytest.raises(
        ValueError, match=r"CoAttention expects a map \(batch, channels=3, group=24, depth, height, width"
    ):
        nn.CoAttention(3, G)(torch.randn(2, 3, 24, 5, 5))
    with pytest.raises(ValueError, match=r"expected an image \(..., depth, height, width\)"):
        transform_image(torch.randn(4, 4), G, 1)
    with pytest.raises(ValueError, match=r"expected a map \(..., group, length\)"):
        transform_map(torch.randn(2), reflection(), 1)
    with pytest.raises(ValueError, match="pass one of planar and action, got both"):
        ca.FiniteGroup([[0]], planar=[np.eye(2)], action=[np.eye(2)])
    with pytest.raises(ValueError, match=r"one 2 x 2 matrix per element, shape \(1, 2, 2\), got shape \(1, 3, 3\)"):
        ca.FiniteGroup([[0]], planar=[np.eye(3)])
    with pytest.raises(ValueError, match=r"one d x d matrix per element, shape \(1, d, d\), got shape \(1, 3, 2\)"):
        ca.FiniteGroup([[0]], action=[np.ones((3, 2))])
    with pytest.raises(ValueError, match="not a homomorphism"):
        ca.FiniteGroup(G.product, action=G.action[[0, 2, 1, *range(3, 24)]])


def test_other_angles_in_three_dimensions_are_refused_and_named() -> None:
    angle = 2 * np.pi / 5
    turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    table = ca.cyclic(5).product
    G = ca.FiniteGroup(table, action=[np.linalg.matrix_power(turn, n) for n in range(5)], name="C5 about z")
    assert G.exact_elements == (0,)
    with pytest.raises(ValueError, match="element 1 of C5 about z does not move voxels onto voxels"):
        transform_image(torch.randn(4, 4, 4), G, 1)
    assert filter_turns(G, 3, "bicubic").shape == (5, 27, 27)
    for filters in ("free", "steerable"):
        with pytest.raises(ValueError, match=f'{filters} filters are available in 2.*acts on 3; pass "bicubic"'):
            filter_turns(G, 3, filters)
