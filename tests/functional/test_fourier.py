"""Transforms along the rotations: the matrix form, over every numbering that they serve, and no other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import coattend as ca
from coattend.functional import co_attention, fourier
from coattend.functional.attention import attend_formula, attention_index, attention_matrix
from coattend.functional.fourier import attend_rotations, is_faster, rotations
from coattend.nn.co_attention import paper_index
from tests import oracles
from tests.example_groups import ALL

CYCLIC = [f"C{n}" for n in (1, 2, 3, 5, 8, 16, 31, 64, 65, 96, 127, 128)]
DIHEDRAL = [f"D{n}" for n in (1, 2, 4, 5, 16, 33, 48, 64)]
NUMBERED = {
    **{name: (lambda name=name: ca.get_group(name)) for name in (*CYCLIC, "C6 clockwise", *DIHEDRAL)},
    "C2 x C48": lambda: ca.direct_product("C2", "C48"),
    "D3 x C7": lambda: ca.direct_product("D3", "C7"),
    "S3": ALL["S3"],  # in blocks of two
}


@pytest.fixture
def transforms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use transforms for small maps, in pieces of one image and one channel."""
    monkeypatch.setattr(fourier, "SMALLEST_MAP", 0)
    monkeypatch.setattr(fourier, "PIECE", 1)


def example(G: ca.FiniteGroup, size: tuple[int, ...] = (2, 3)) -> tuple[Tensor, Tensor]:
    return torch.randn(3, 2, G.order, *size, requires_grad=True), torch.randn(2, G.order, requires_grad=True)


@pytest.mark.parametrize("piece", [1, 2**18])
@pytest.mark.parametrize("name", NUMBERED)
def test_equals_the_matrix_form_values_and_gradients(name: str, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fourier, "PIECE", piece)
    G = NUMBERED[name]()
    x, a = example(G)
    up = torch.randn_like(x)
    matrix = attention_matrix(a, attention_index(G))
    results = []
    for y in (attend_rotations(x, matrix, rotations(G)), attend_formula(x, matrix)):
        results.append((y, *torch.autograd.grad(y, (x, a), up, retain_graph=True)))
    for ours, exact in zip(*results, strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["C96", "D48"])
def test_equals_the_slow_loop(name: str, transforms: None) -> None:
    G = ca.get_group(name)
    x, a = example(G, (1, 2))
    y = co_attention(x, a, G)
    assert y.grad_fn is not None
    for c in range(2):
        expected = oracles.attend(x[0, c].detach().numpy(), a[c].detach().numpy(), G.product, G.inverse)
        torch.testing.assert_close(y[0, c], torch.tensor(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["C5", "C6", "D3"])
def test_gradcheck_twice(name: str) -> None:
    G = ca.get_group(name)
    x, a = torch.randn(1, 2, G.order, 2, requires_grad=True), torch.randn(2, G.order, requires_grad=True)

    def attend(x: Tensor, a: Tensor) -> Tensor:
        return attend_rotations(x, attention_matrix(a, attention_index(G)), rotations(G))

    assert torch.autograd.gradcheck(attend, (x, a))
    assert torch.autograd.gradgradcheck(attend, (x, a))


@pytest.mark.parametrize("name", ["C97", "D36"])
def test_layers_commute_with_every_left_translation(name: str, transforms: None) -> None:
    layer = ca.nn.CoAttention(2, name, init_std=1.0)
    G = layer.group
    x, _ = example(G)
    assert is_faster(x, G)
    y = layer(x)
    for g in G.elements:
        permuted = G.relative[g].tolist()
        torch.testing.assert_close(layer(x[:, :, permuted]), y[:, :, permuted], rtol=1e-12, atol=1e-12)


def test_equal_responses_have_a_mask_of_one(transforms: None) -> None:
    x = torch.full((1, 2, 100, 3, 3), 0.7)
    torch.testing.assert_close(co_attention(x, torch.randn(2, 100), ca.cyclic(100)), x, rtol=1e-12, atol=0)
    assert torch.equal(co_attention(0 * x, torch.randn(2, 100), ca.cyclic(100)), 0 * x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_types_compute_in_single(dtype: torch.dtype, transforms: None) -> None:
    G = ca.cyclic(96)
    x, a = (t.detach().to(dtype).requires_grad_() for t in example(G))
    y = co_attention(x, a, G)
    assert y.dtype == dtype
    gradients = torch.autograd.grad(y.double().square().sum(), (x, a))
    wide = [t.detach().double().requires_grad_() for t in (x, a)]
    exact = attend_formula(wide[0], attention_matrix(wide[1], attention_index(G)))
    for ours, theirs in zip((y, *gradients), (exact, *torch.autograd.grad(exact.square().sum(), wide)), strict=True):
        assert (ours.double() - theirs).abs().max() <= 8 * torch.finfo(dtype).eps * theirs.abs().max()


def test_only_the_inputs_are_saved() -> None:
    G = ca.cyclic(6)
    x, a = example(G)
    matrix = attention_matrix(a, attention_index(G)).detach().requires_grad_()
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        attend_rotations(x, matrix, 6)
    storages = {t.untyped_storage().data_ptr() for t in saved}
    assert storages == {x.untyped_storage().data_ptr(), matrix.untyped_storage().data_ptr()}


def test_rotations_of_other_numberings() -> None:
    assert [rotations(ca.get_group(name)) for name in ("C1", "C9", "D1", "D5")] == [1, 9, 2, 5]
    assert rotations(ca.direct_product("C6", "C2")) == 2
    assert rotations(ALL["A4"]()) == 1
    mirrors_last = [0, *range(2, 10), 1]  # D5 with its elements 1 to 9 renumbered
    table = ca.dihedral(5).product[mirrors_last][:, mirrors_last]
    renumbered = ca.FiniteGroup([[mirrors_last.index(int(g)) for g in row] for row in table])
    assert rotations(renumbered) == 1


def test_blocks_of_another_size_give_another_result() -> None:
    G = ca.direct_product("C3", "C4")
    x, a = example(G)
    matrix = attention_matrix(a, attention_index(G))
    assert not torch.allclose(attend_rotations(x, matrix, 12), attend_formula(x, matrix))


def test_used_for_large_maps_of_large_groups_only() -> None:
    def map_of(G: ca.FiniteGroup, size: int) -> Tensor:
        return torch.empty(1, 1, G.order, size, size)

    assert is_faster(map_of(ca.cyclic(65), 160), ca.cyclic(65))
    assert is_faster(map_of(ca.dihedral(64), 160), ca.dihedral(64))
    assert not is_faster(map_of(ca.cyclic(64), 160), ca.cyclic(64))
    assert not is_faster(map_of(ca.cyclic(65), 100), ca.cyclic(65))
    assert not is_faster(map_of(ca.direct_product("C3", "C40"), 160), ca.direct_product("C3", "C40"))
    assert not is_faster(map_of(ca.cyclic(65), 160).to("meta"), ca.cyclic(65))


def test_free_and_printed_matrices_keep_the_matrix(transforms: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A free matrix is not circulant, so that transforms would ignore most of it."""
    monkeypatch.setattr("coattend.functional.attention.attend_rotations", None)
    G = ca.cyclic(65)
    x, _ = example(G)
    free = torch.randn(2, 65, 65)
    torch.testing.assert_close(co_attention(x, free, G), attend_formula(x, free), rtol=1e-12, atol=1e-12)
    assert ca.nn.CoAttention(2, G, structure="full")(x).shape == x.shape
    assert ca.nn.CoAttention(2, G, structure="paper")(x).shape == x.shape
    assert torch.equal(paper_index(G), attention_index(G))


@pytest.mark.parametrize("group", ["C128", "D48"])
def test_networks_over_large_groups_train_show_masks_and_freeze(group: str, transforms: None) -> None:
    torch.set_default_dtype(torch.float32)
    network = ca.create_model(f"a_p4cnn:group={group},width=1,attention=output,filters=steerable,head=max")
    images = torch.randn(2, 1, 28, 28)
    network.train()(images).square().sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    network.eval()
    masks = ca.attention_masks(network, images)
    assert all(mask.shape[2] == network.group.order and mask.amax(2).eq(1).all() for mask in masks.values())
    with torch.no_grad():
        torch.testing.assert_close(ca.freeze(network)(images), network(images), rtol=0, atol=1e-5)
