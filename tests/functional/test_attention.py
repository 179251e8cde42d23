"""Eqs. 6-8 to the letter, any finite group, gradients, ties and narrow types."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import coattend as ca
from coattend.functional import co_attention, co_attention_mask
from coattend.functional.attention import attention_index
from tests import oracles
from tests.example_groups import ALL, BARE, LARGE


def literal(x: Tensor, matrix: Tensor) -> Tensor:
    """a = x A, softmax(a / n), divided by its maximum, times x."""
    a = torch.einsum("bchyx,chg->bcgyx", x, matrix)
    softmax = torch.softmax(a / x.shape[2], dim=2)
    return softmax / softmax.max(dim=2, keepdim=True).values * x


@pytest.mark.parametrize("name", ALL)
def test_equals_the_literal_formula_values_and_gradients(name: str) -> None:
    G = ALL[name]()
    x = torch.randn(2, 3, G.order, 4, 5, requires_grad=True)
    a = torch.randn(3, G.order, requires_grad=True)
    up = torch.randn_like(x)
    ours = torch.autograd.grad((co_attention(x, a, G) * up).sum(), (x, a))
    theirs = torch.autograd.grad((literal(x, a[:, G.relative.T.tolist()]) * up).sum(), (x, a))
    torch.testing.assert_close(co_attention(x, a, G), literal(x, a[:, G.relative.T.tolist()]), rtol=0, atol=1e-12)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["C4", "D4", "Q8"])
def test_equals_the_slow_loop(name: str) -> None:
    G = ALL[name]()
    x, a = torch.randn(1, 2, G.order, 3, 2), torch.randn(2, G.order)
    for c in range(2):
        expected = oracles.attend(x[0, c].numpy(), a[c].numpy(), G.product, G.inverse)
        torch.testing.assert_close(co_attention(x, a, G)[0, c], torch.tensor(expected), rtol=0, atol=1e-12)


def test_c4_matrix_is_circulant_and_d4_matrix_has_the_corrected_blocks() -> None:
    assert attention_index(ca.cyclic(4)).tolist() == [[0, 3, 2, 1], [1, 0, 3, 2], [2, 1, 0, 3], [3, 2, 1, 0]]
    index = attention_index(ca.dihedral(4))
    same, cross = index[:4, :4], index[:4, 4:]
    assert torch.equal(same, attention_index(ca.cyclic(4)))
    assert torch.equal(index[4:, 4:], same.T)  # [[A1, A2], [A2^T, A1^T]]: mirrored poses count backwards
    assert torch.equal(index[4:, :4], cross.T)


@pytest.mark.parametrize("name", ALL)
def test_gradcheck_away_from_ties(name: str) -> None:
    G = ALL[name]()
    x = torch.randn(1, 2, G.order, 2, 1, requires_grad=True)
    a = torch.randn(2, G.order, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, a: co_attention(x, a, G), (x, a))


@pytest.mark.parametrize("name", [*LARGE, *BARE, "C4", "D4"])
def test_commutes_with_every_left_translation(name: str) -> None:
    G = ALL[name]()
    x, a = torch.randn(2, 3, G.order, 3, 4), torch.randn(3, G.order)
    y = co_attention(x, a, G)
    for g in G.elements:
        translated = co_attention(x[:, :, G.relative[g].tolist()], a, G)
        torch.testing.assert_close(translated, y[:, :, G.relative[g].tolist()], rtol=1e-12, atol=1e-12)


@settings(deadline=None, max_examples=25, derandomize=True)
@given(name=st.sampled_from(["C6", "D4", "S3", "Q8", "A4"]), data=st.data())
def test_commutes_however_the_elements_are_numbered(name: str, data: st.DataObject) -> None:
    """Nothing may depend on the order of a table's rows: relabel a group at random and the matrix follows."""
    G = ALL[name]() if name in ALL else ca.get_group(name)
    old = [0, *data.draw(st.permutations(range(1, G.order)))]
    new = [old.index(g) for g in range(G.order)]
    relabelled = ca.FiniteGroup([[new[G.product[a, b]] for b in old] for a in old])
    x, a = torch.randn(1, 2, G.order, 1, 2), torch.randn(2, G.order)
    y = co_attention(x, a, relabelled)
    torch.testing.assert_close(y[:, :, new], co_attention(x[:, :, new], a[:, new], G))
    for g in relabelled.elements:
        shift = relabelled.relative[g].tolist()
        torch.testing.assert_close(co_attention(x[:, :, shift], a, relabelled), y[:, :, shift])


def test_zero_weights_are_the_identity_and_the_identity_matrix_is_not() -> None:
    G, x = ca.dihedral(4), torch.randn(2, 3, 8, 4, 4)
    assert torch.equal(co_attention(x, torch.zeros(3, 8), G), x)
    unit = torch.zeros(3, 8)
    unit[:, 0] = 1
    torch.testing.assert_close(co_attention_mask(x, unit, G), torch.exp((x - x.amax(2, keepdim=True)) / 8))


def test_masks_lie_between_zero_and_one_and_reach_one() -> None:
    G = ca.cyclic(8)
    mask = co_attention_mask(10 * torch.randn(2, 3, 8, 5, 5), torch.randn(3, 8), G)
    assert (mask >= 0).all()
    assert torch.equal(mask.amax(2), torch.ones(2, 3, 5, 5))


@pytest.mark.parametrize("name", ["C4", "D4"])
def test_parameter_gradients_agree_on_ties(name: str) -> None:
    """A constant background makes all poses equal: x and g.x must still teach the attention the same."""
    G = ca.get_group(name)
    x = torch.zeros(1, 2, G.order, 6, 6)
    x[..., 2:4, 1:5] = torch.randn(1, 2, G.order, 2, 4)
    x[..., 4, 4] = 0.7
    a = torch.randn(2, G.order)
    target = torch.randn(1, 2, 6, 6)

    def gradient(x: Tensor, target: Tensor) -> Tensor:
        weights = a.clone().requires_grad_()
        y = co_attention(x, weights, G).sum(2)
        return torch.autograd.grad((y - target).square().sum(), weights)[0]

    straight = gradient(x, target)
    assert straight.abs().min() > 1e-3
    for g in G.elements:
        moved = gradient(ca.groups.transform_map(x, G, g), ca.groups.transform_image(target, G, g))
        torch.testing.assert_close(moved, straight, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1.0, 1e2, 1e4])
def test_stable_in_narrow_types_and_for_large_activations(dtype: torch.dtype, scale: float) -> None:
    G = ca.dihedral(4)
    x = (scale * torch.randn(2, 3, 8, 4, 4)).to(dtype).requires_grad_()
    a = torch.randn(3, 8).to(dtype).requires_grad_()
    y, mask = co_attention(x, a, G), co_attention_mask(x, a, G)
    assert y.dtype == mask.dtype == dtype
    y.float().sum().backward()
    for t in (y, mask, x.grad, a.grad):
        assert torch.isfinite(t).all()
    assert (mask.amax(2) == 1).all()
    exact = co_attention(x.detach().double(), a.detach().double(), G)
    step = torch.finfo(dtype).eps
    # Logits are computed in float32 or wider; beyond that only the mask and the product are rounded.
    logit_error = 20 * scale * torch.finfo(torch.float32).eps
    torch.testing.assert_close(y.double(), exact, rtol=4 * step + logit_error, atol=scale * 1e-6)


def test_autocast_keeps_the_logits_wide() -> None:
    G = ca.cyclic(4)
    x = (1e3 * torch.randn(1, 2, 4, 3, 3)).bfloat16()
    a = torch.randn(2, 4, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = co_attention_mask(x, a, G)
    torch.testing.assert_close(inside.double(), co_attention_mask(x.double(), a.double(), G), rtol=5e-3, atol=1e-3)


def test_refusals() -> None:
    G = ca.cyclic(4)
    with pytest.raises(ValueError, match=r"group=4.*C4, got \(1, 2, 8, 3, 3\)"):
        co_attention(torch.zeros(1, 2, 8, 3, 3), torch.zeros(2, 4), G)
    with pytest.raises(ValueError, match=r"got a float64 tensor \(1, 2, 3, 3\)"):
        co_attention(torch.zeros(1, 2, 3, 3), torch.zeros(2, 4), G)
    with pytest.raises(ValueError, match=r"channels=2, group=4\).*got \(3, 4\)"):
        co_attention_mask(torch.zeros(1, 2, 4, 3, 3), torch.zeros(3, 4), G)


@pytest.mark.parametrize("dimension", [1, 3])
def test_maps_have_the_spatial_axes_of_the_group(dimension: int) -> None:
    """Every position is attended to on its own, so the axes of positions may be merged."""
    reflection = ca.FiniteGroup([[0, 1], [1, 0]], action=[np.eye(dimension), -np.eye(dimension)])
    plane = ca.FiniteGroup([[0, 1], [1, 0]], planar=[np.eye(2), -np.eye(2)])
    x, weights = torch.randn(2, 3, 2, *(4,) * dimension, requires_grad=True), torch.randn(3, 2)
    flat = x.flatten(3).unsqueeze(-1)
    for function in (co_attention, co_attention_mask):
        assert torch.equal(function(x, weights, reflection), function(flat, weights, plane).view(x.shape))
        with pytest.raises(ValueError, match=r"co_attention expects x to be .*group=2"):
            function(flat, weights, reflection)
        with pytest.raises(ValueError, match=r"co_attention expects x to be .*group=2, height, width"):
            function(x, weights, plane)
    (ours,) = torch.autograd.grad(co_attention(x, weights, reflection).square().sum(), x)
    (theirs,) = torch.autograd.grad(co_attention(flat, weights, plane).square().sum(), x)
    assert torch.equal(ours, theirs)
    with pytest.raises(ValueError, match="co_attention expects x"):
        torch.ops.coattend.co_attention(x, torch.randn(3, 2, 2))
