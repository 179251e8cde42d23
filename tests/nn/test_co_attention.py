from __future__ import annotations

import numpy as np
import pytest
import torch

import coattend as ca
from coattend.nn.co_attention import paper_index
from tests import oracles
from tests.example_groups import BARE, EXACT, LARGE, alternating4, quaternions, symmetric

nn = ca.nn


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("size", [(5, 5), (4, 7)])
def test_commutes_with_every_element(name: str, size: tuple[int, int]) -> None:
    G = ca.get_group(name)
    ca.assert_equivariant(nn.CoAttention(3, G, init_std=1.0), torch.randn(2, 3, G.order, *size), G, tol=1e-12)


@pytest.mark.parametrize("name", BARE)
def test_needs_no_planar_action(name: str) -> None:
    G = BARE[name]()
    ca.assert_equivariant(nn.CoAttention(3, G, init_std=1.0), torch.randn(2, 3, G.order, 4, 3), G, tol=1e-12)


@pytest.mark.parametrize("name", LARGE)
def test_left_translations_of_large_groups(name: str) -> None:
    G = ca.FiniteGroup(LARGE[name]().product)  # without the action: nothing to interpolate
    ca.assert_equivariant(nn.CoAttention(3, G, init_std=1.0), torch.randn(2, 3, G.order, 4, 3), G, tol=1e-12)


def broken_elements(structure: str, G: ca.FiniteGroup) -> set[int]:
    errors = ca.equivariance_error(nn.CoAttention(8, G, structure, init_std=1.0), torch.randn(4, 8, G.order, 5, 5), G)
    assert all(e <= 1e-12 or e > 0.05 for e in errors.values())  # sound or clearly broken, nothing between
    return {g for g, e in errors.items() if e > 1e-12}


def test_eq_11_as_printed_breaks_every_mirror_of_d4_in_our_order() -> None:
    assert broken_elements("paper", ca.dihedral(4)) == {4, 5, 6, 7}
    assert broken_elements("group", ca.dihedral(4)) == set()


def test_eq_11_as_printed_breaks_every_quarter_turn_of_d4_in_groupys_order() -> None:
    ours = ca.dihedral(4)
    # GrouPy's element 4m + r is M^m R^r, rotate first, then mirror the rows; rows mirrored = our element 4 + 2.
    mirror_rows = 6
    groupy = [int(ours.product[mirror_rows if m else 0, r]) for m in (0, 1) for r in range(4)]
    table = [[groupy.index(int(ours.product[a, b])) for b in groupy] for a in groupy]
    G = ca.FiniteGroup(table, ours.planar[groupy], name="D4 in GrouPy's order")
    broken = broken_elements("paper", G)
    assert {1, 3} <= broken
    assert not broken & {0, 2, 4, 6}
    assert broken_elements("group", G) == set()


def test_eq_11_is_exact_on_c2_x_cn_and_eq_9_on_cn() -> None:
    for n in (2, 3, 4, 8):
        G = ca.direct_product(ca.cyclic(2), ca.cyclic(n))
        assert broken_elements("paper", G) == set()
        assert torch.equal(paper_index(ca.cyclic(n)), ca.functional.attention.attention_index(ca.cyclic(n)))


def test_full_attention_breaks_every_element_but_the_identity() -> None:
    for name in ("C4", "D4"):
        G = ca.get_group(name)
        assert broken_elements("full", G) == set(range(1, G.order))


@pytest.mark.parametrize("group", [quaternions, alternating4, lambda: symmetric(3)])
def test_eq_11_is_refused_where_it_is_not_defined(group: object) -> None:
    with pytest.raises(ValueError, match='structure="paper".*Cn, Dn, C2 x Cn.*structure="group" serves every group'):
        nn.CoAttention(3, group(), "paper")


def test_initialisation_is_the_papers() -> None:
    torch.manual_seed(0)
    layer = nn.CoAttention(2000, "p4m", init_std=0.035)
    diagonal = layer.matrix().diagonal(dim1=1, dim2=2)
    assert torch.equal(diagonal, torch.ones(2000, 8))
    assert abs(layer.weight[:, 1:].std().item() / 0.035 - 1) < 0.02
    full = nn.CoAttention(2000, "p4", "full", init_std=0.1)
    assert torch.equal(full.weight.diagonal(dim1=1, dim2=2), torch.ones(2000, 4))
    off = full.weight[:, ~torch.eye(4, dtype=torch.bool)]
    assert abs(off.std().item() / 0.1 - 1) < 0.02
    paper = nn.CoAttention(3, "p4m", "paper")
    assert torch.equal(paper.matrix().diagonal(dim1=1, dim2=2), torch.ones(3, 8))


@pytest.mark.parametrize(("structure", "shape"), [("group", (5, 8)), ("paper", (5, 8)), ("full", (5, 8, 8))])
def test_parameters(structure: str, shape: tuple[int, ...]) -> None:
    layer = nn.CoAttention(5, "p4m", structure)
    assert [p.shape for p in layer.parameters()] == [shape]
    assert list(layer.state_dict()) == ["weight"]


def test_slice_attention_with_zero_vectors_is_the_group_convolution() -> None:
    for name in ("C4", "D4"):
        sliced, conv = nn.SliceCoAttentiveConv2d(3, 5, 3, name), nn.GroupConv2d(3, 5, 3, name)
        conv.load_state_dict({k: v for k, v in sliced.state_dict().items() if not k.startswith("attention")})
        torch.nn.init.zeros_(sliced.attention.weight)
        x = torch.randn(2, 3, conv.group.order, 6, 7)
        torch.testing.assert_close(sliced(x), conv(x), rtol=1e-12, atol=1e-12)


def test_the_scale_of_the_logits_replaces_the_factor_1_over_n() -> None:
    layer, x = nn.CoAttention(3, "p4m", init_std=1.0), torch.randn(2, 3, 8, 4, 4)
    scaled = nn.CoAttention(3, "p4m", scale=0.5)
    scaled.load_state_dict({"weight": layer.weight / 4})
    torch.testing.assert_close(scaled(x), layer(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(scaled.mask(x), layer.mask(x), rtol=1e-12, atol=1e-12)
    same = nn.CoAttention(3, "p4m", scale=1 / 8)
    same.load_state_dict(layer.state_dict())
    torch.testing.assert_close(same(x), layer(x), rtol=1e-12, atol=1e-12)
    assert repr(scaled) == "CoAttention(3, group=D4, structure='group', scale=0.5)"
    with pytest.raises(ValueError, match="CoAttention expects scale to be a number of at least 0, got -1"):
        nn.CoAttention(3, "p4", scale=-1)


@pytest.mark.parametrize("name", [*EXACT, "C2 x D4"])
def test_heads_average_masks_and_commute_with_every_element(name: str) -> None:
    G = BARE[name]() if name in BARE else ca.get_group(name)
    layer, x = nn.MultiheadCoAttention(3, G, init_std=1.0, scale=1.0, heads=2), torch.randn(2, 3, G.order, 4, 4)
    single = [nn.CoAttention(3, G, scale=1.0) for _ in range(2)]
    for head, weight in zip(single, layer.weight.chunk(2), strict=True):
        head.load_state_dict({"weight": weight})
    torch.testing.assert_close(layer.mask(x), (single[0].mask(x) + single[1].mask(x)) / 2, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(layer(x), layer.mask(x) * x, rtol=1e-12, atol=1e-12)
    ca.assert_equivariant(layer, x, G, tol=1e-12)
    assert not layer.is_fusible()


@pytest.mark.parametrize("name", ["C4", "D4", "C2 x D4"])
def test_heads_and_scale_equal_the_slow_loop(name: str) -> None:
    G = ca.direct_product(ca.cyclic(2), ca.dihedral(4)) if name == "C2 x D4" else ca.get_group(name)
    layer, x = nn.MultiheadCoAttention(2, G, init_std=1.0, scale=0.7, heads=3), torch.randn(1, 2, G.order, 2, 3)
    vectors = 0.7 * G.order * layer.weight.detach().numpy().reshape(3, 2, -1)  # the loop divides by n
    for c in range(2):
        heads = [oracles.attend(x[0, c].numpy(), vectors[k, c], G.product, G.inverse) for k in range(3)]
        np.testing.assert_allclose(layer(x)[0, c].detach().numpy(), np.mean(heads, axis=0), rtol=0, atol=1e-12)


def test_gradients_of_heads_are_those_of_differences() -> None:
    layer, x = nn.MultiheadCoAttention(2, "p4m", init_std=1.0, scale=0.7), torch.randn(1, 2, 8, 2, 1)
    assert torch.autograd.gradcheck(
        lambda x, weight: torch.func.functional_call(layer, {"weight": weight}, (x,)),
        (x.requires_grad_(), layer.weight),
    )


def test_heads_are_exact_on_the_exact_subgroup() -> None:
    layer = nn.MultiheadCoAttention(4, "C8", init_std=1.0, scale=1.0)
    errors = ca.equivariance_error(layer, torch.randn(2, 4, 8, 6, 6), "C8")
    assert max(errors[g] for g in layer.group.exact_elements) <= 1e-12
