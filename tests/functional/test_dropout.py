"""Against what dropout is: independent draws, an unchanged mean, gradients through what was kept."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from coattend.functional import dropout


def deviations(kept: torch.Tensor, p: float) -> torch.Tensor:
    """How many standard deviations the share that is kept lies off, for each of four places that share a draw."""
    places = kept.double().view(-1, 4)
    return (places.mean(0) - (1 - p)).abs() / (p * (1 - p) / len(places)) ** 0.5


@pytest.mark.parametrize("p", [0.2, 0.3, 0.5, 0.9])
def test_every_place_is_dropped_with_the_same_chance(p: float) -> None:
    torch.manual_seed(0)
    assert (deviations(dropout(torch.ones(4_000_000), p, training=True) != 0, p) < 5).all()


def test_draws_without_the_sign_bit_would_be_noticed() -> None:
    draws = torch.empty(1_000_000, dtype=torch.int64).random_().view(torch.int16)
    assert deviations(draws >= 0.2 * 65536 - 32768, 0.2)[3] > 100


def test_places_are_independent() -> None:
    torch.manual_seed(0)
    kept = (dropout(torch.ones(250_000, 8), 0.3, training=True) != 0).double()
    correlation = torch.corrcoef(kept.T) - torch.eye(8)
    assert correlation.abs().max() < 5 / 250_000**0.5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5, 4, 7, 7), (1,), (0, 4), (5,)])
def test_what_is_kept_grows_by_what_keeps_the_mean(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=dtype).requires_grad_()
    y = dropout(x, 0.2, training=True)
    assert y.dtype == dtype
    assert y.shape == x.shape
    factor = torch.tensor(65536 / (65536 - 13107), dtype=dtype)  # 0.2 of 65,536, rounded
    assert torch.equal(y, torch.where(y == 0, 0, x * factor))
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert torch.equal(gradient, torch.where(y == 0, 0, factor))


def test_maps_in_any_memory_order_are_dropped_where_they_are() -> None:
    x = torch.arange(1.0, 25.0).view(2, 3, 4).transpose(0, 2)
    torch.manual_seed(0)
    strided = dropout(x, 0.5, training=True)
    torch.manual_seed(0)
    assert torch.equal(strided, dropout(x.contiguous(), 0.5, training=True))


def test_a_seed_decides_and_evaluation_leaves_alone() -> None:
    x = torch.randn(100)
    masks = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        masks.append(dropout(x, 0.5, training=True))
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])
    assert torch.equal(dropout(x, 0.5, training=False), x)
    assert torch.equal(dropout(x, 0.0, training=True), x)
    assert torch.equal(dropout(x, 1.0, training=True), torch.zeros(100))


def test_transforms_and_compilers_get_torchs_own() -> None:
    x = torch.randn(3, 50)
    torch.manual_seed(0)
    expected = F.dropout(x, 0.5)
    torch.manual_seed(0)
    assert torch.equal(torch.vmap(lambda row: dropout(row, 0.5, True), randomness="different")(x), expected)
