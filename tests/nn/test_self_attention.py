"""GroupSelfAttention2d and GroupTransformerBlock: equivariance for every element, and what breaks it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import coattend as ca
from coattend.functional import group_self_attention, self_attention
from coattend.functional.self_attention import attend_positions
from coattend.nn.self_attention import rotary_frequencies

nn = ca.nn


def generic(layer: torch.nn.Module) -> torch.nn.Module:
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


def exact_error(layer: torch.nn.Module, group: ca.FiniteGroup, size: int) -> float:
    errors = ca.equivariance_error(layer, torch.randn(2, 8, group.order, size, size), group)
    return max(errors[g] for g in group.exact_elements)


@pytest.mark.parametrize(("size", "window"), [(6, None), (5, None), (6, 3)])
@pytest.mark.parametrize("name", ["C4", "D4", "C8"])
def test_every_exact_element_commutes(name: str, size: int, window: int | None) -> None:
    group = ca.get_group(name)
    attention = generic(nn.GroupSelfAttention2d(8, name, heads=2, window=window))
    assert exact_error(attention, group, size) <= 1e-12
    block = generic(nn.GroupTransformerBlock(8, name, heads=2, window=window, mlp=2, layer_scale=0.1))
    assert exact_error(block, group, size) <= 1e-12


@pytest.mark.parametrize("name", ["C4", "D4"])
def test_positions_that_do_not_turn_break_it(name: str) -> None:
    attention = generic(nn.GroupSelfAttention2d(8, name, heads=2))
    attention.frequencies = attention.frequencies[:1].expand_as(attention.frequencies)
    errors = ca.equivariance_error(attention, torch.randn(2, 8, attention.group.order, 6, 6), name)
    assert min(errors[g] for g in range(1, attention.group.order)) > 1e-2


def test_other_elements_are_as_good_as_the_grid() -> None:
    """An eighth of a turn of a smooth map in the middle of the frame; frequencies turn by every angle."""
    torch.manual_seed(1)
    attention = nn.GroupSelfAttention2d(8, "C8", heads=2)
    x = torch.randn(1, 8, 8, 31, 31)
    assert max(ca.equivariance_error(attention, x, "C8").values()) < 0.1


def test_the_layer_is_its_formula() -> None:
    attention = generic(nn.GroupSelfAttention2d(8, "D4", heads=2))
    x = torch.randn(2, 8, 8, 4, 4)
    q, k, v = attention.qkv(x).chunk(3, dim=1)
    expected = attention.out(group_self_attention(q, k, v, rotary_frequencies(2, 8), attention.group))
    torch.testing.assert_close(attention(x), expected, rtol=1e-12, atol=1e-12)


def test_positions_matter() -> None:
    """Without rotary positions, a permutation of the positions would permute the result."""
    attention = generic(nn.GroupSelfAttention2d(8, "C4", heads=2))
    x = torch.randn(1, 8, 4, 4, 4)
    permuted = x.flatten(3)[..., torch.randperm(16)].unflatten(3, (4, 4))
    plain, other = attention(x).flatten(3).sum(-1), attention(permuted).flatten(3).sum(-1)
    assert (plain - other).norm() / plain.norm() > 1e-2


def test_windows_do_not_see_one_another() -> None:
    attention = generic(nn.GroupSelfAttention2d(8, "C4", heads=2, window=2))
    x = torch.randn(1, 8, 4, 4, 6)
    changed = x.clone()
    changed[..., :2, :2] = 0
    difference = (attention(x) - attention(changed)).abs().amax((0, 1, 2))
    assert (difference[:2, :2] > 0).all()
    difference[:2, :2] = 0
    assert not difference.any()


@pytest.mark.parametrize("kind", ["attention", "block"])
def test_bfloat16(kind: str) -> None:
    torch.set_default_dtype(torch.float32)
    layer = nn.GroupSelfAttention2d(8, "D4", 2) if kind == "attention" else nn.GroupTransformerBlock(8, "D4", 2)
    x = torch.randn(2, 8, 8, 6, 6)

    def error(y: Tensor) -> float:
        return float((y.float() - exact).norm() / exact.norm())

    with torch.no_grad():
        exact = layer(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert error(layer(x)) < 0.03
        assert error(layer.bfloat16()(x.bfloat16())) < 0.03


def test_frequencies_are_spread() -> None:
    frequencies = rotary_frequencies(3, 24)
    assert frequencies.shape == (3, 4, 2)
    sizes = frequencies.norm(dim=-1)
    torch.testing.assert_close(sizes, torch.logspace(0, -2, 4).expand(3, 4))
    assert len({round(float(a), 6) for a in torch.atan2(*frequencies.unbind(-1)).flatten()}) == 12


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="pass a multiple of 8 channels"):
        nn.GroupSelfAttention2d(12, "C4", heads=4)
    with pytest.raises(ValueError, match="layer_scale"):
        nn.GroupTransformerBlock(8, "C4", layer_scale=-1)
    with pytest.raises(ValueError, match="window"):
        nn.GroupSelfAttention2d(8, "C4", window=0)
    with pytest.raises(ValueError, match="bare table"):
        nn.GroupSelfAttention2d(8, ca.FiniteGroup([[0, 1], [1, 0]]))


@pytest.mark.parametrize("window", [None, 3])
def test_shares_are_what_positions_get_from_others(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With channels as values that tell the positions apart, the mean of the result is the share of each."""
    monkeypatch.setattr(self_attention, "QUERIES", 5)  # which no number of positions is a multiple of
    layer = generic(nn.GroupSelfAttention2d(4, "C4", heads=2, window=window))
    x = torch.randn(1, 4, 4, 6, 3)
    shares, (q, k, _) = layer.shares(x), layer.qkv(x).chunk(3, dim=1)
    assert shares.shape == x.shape
    for position in range(18):
        v = torch.zeros(18).index_fill(0, torch.tensor(position), 1.0).reshape(6, 3).expand(1, 4, 4, 6, 3)
        got = attend_positions(torch.stack((q, k, v), dim=1), layer.frequencies, window).sum((-2, -1))
        torch.testing.assert_close(shares.flatten(3)[..., position], got, rtol=1e-12, atol=1e-12)
