"""Batch norm in one pass with attention and ReLU: against the formula in float64."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.functional.attention import attend
from coattend.functional.layout import channels_last, is_channels_last
from coattend.functional.normalization import fuses_norm, normalize

CASES = list(itertools.product([1, 2, 3, 4, 8], [True, False], [True, False], [True, False]))


@pytest.fixture(autouse=True)
def float32() -> None:
    torch.set_default_dtype(torch.float32)


def oracle(
    x: Tensor,
    matrix: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    running: object,
    relu: bool,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    y = x if matrix is None else attend(x, matrix).to(dtype).double()
    mean, variance = (None, None) if running is None else running  # type: ignore[misc]
    y = F.batch_norm(y, mean, variance, weight, bias, training=running is None, eps=1e-3)
    return F.relu(y) if relu else y


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("order", "attends", "relu", "training"), CASES)
def test_is_the_formula(order: int, attends: bool, relu: bool, training: bool, dtype: torch.dtype) -> None:
    if attends and order not in (2, 4, 8):
        pytest.skip("attention of this order is not fused")
    torch.manual_seed(0)
    channels = 3
    x = (torch.randn(4, channels, order, 5, 6, dtype=torch.float64) + 2).to(dtype)
    matrix = torch.randn(channels, order, order, dtype=torch.float64) if attends else None
    weight, bias = torch.rand(channels, dtype=torch.float64) + 0.5, torch.randn(channels, dtype=torch.float64) / 4
    running = None if training else (torch.ones(channels).double(), torch.rand(channels).double() + 0.5)
    given = None if running is None else (running[0].float(), running[1].float())

    wide = [None if t is None else t.detach().requires_grad_() for t in (x.double(), matrix, weight, bias)]
    narrow = [
        None if t is None else t.detach().requires_grad_()
        for t in (channels_last(x), None if matrix is None else matrix.float(), weight.float(), bias.float())
    ]
    expected = oracle(wide[0], wide[1], wide[2], wide[3], running, relu, dtype)  # type: ignore[arg-type]
    z, mean, variance = normalize(narrow[0], narrow[2], narrow[3], given, 1e-3, narrow[1], relu)  # type: ignore[arg-type]
    assert is_channels_last(z)
    error = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(z.double(), expected, rtol=error, atol=error)
    if training:
        y = x.double() if matrix is None else attend(x.double(), matrix)
        torch.testing.assert_close(mean.double(), y.mean((0, 2, 3, 4)), rtol=error, atol=error)
        torch.testing.assert_close(variance.double(), y.var((0, 2, 3, 4), correction=0), rtol=error, atol=error)
    upward = torch.randn(z.shape, dtype=torch.float64)
    inputs = [t for t in wide if t is not None]
    theirs = torch.autograd.grad((expected * upward).sum(), inputs)
    ours = torch.autograd.grad((z * upward.to(dtype)).sum(), [t for t in narrow if t is not None])
    for a, b in zip(ours, theirs, strict=True):
        size = b.abs().max()
        if dtype == torch.float32:
            torch.testing.assert_close(a.double() / size, b / size, rtol=1e-4, atol=1e-4)
        else:
            assert ((a.double() - b).norm() / b.norm()) < 0.02


@pytest.mark.parametrize("attends", [True, False])
@pytest.mark.parametrize("batch", [1, 2, 8, 64])
@pytest.mark.parametrize("channels", [1, 2, 5, 7, 10])
@pytest.mark.parametrize("order", [2, 4, 8])
def test_rows_that_fill_no_vector_are_taken_together(order: int, channels: int, batch: int, attends: bool) -> None:
    """Numbers of rows that are a multiple of those in a vector, and others."""
    torch.manual_seed(0)
    x, matrix = torch.randn(batch, channels, order, 5, 3).double(), torch.randn(channels, order, order).double()
    weight, bias = torch.rand(channels).double() + 0.5, torch.randn(channels).double() / 4
    wide = [t.detach().requires_grad_() for t in (x, weight, bias, *([matrix] if attends else []))]
    narrow = [t.detach().float().requires_grad_() for t in wide]
    expected = oracle(wide[0], wide[3] if attends else None, wide[1], wide[2], None, True)
    z, _, _ = normalize(channels_last(narrow[0]), narrow[1], narrow[2], None, 1e-3, *narrow[3:], relu=True)
    torch.testing.assert_close(z.double(), expected, rtol=1e-5, atol=1e-5)
    upward = torch.randn(x.shape, dtype=torch.float64)
    theirs = torch.autograd.grad((expected * upward).sum(), wide)
    for a, b in zip(torch.autograd.grad((z * upward.float()).sum(), narrow), theirs, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4 * float(b.abs().max()))


@pytest.mark.parametrize("small", [0.0, 1e-6, 1e-2])
def test_small_weights_do_not_lose_gradients(small: float) -> None:
    """The backward pass takes its sums from the result only where the weights allow it."""
    torch.manual_seed(0)
    x, matrix = torch.randn(4, 3, 4, 5, 6, dtype=torch.float64), torch.randn(3, 4, 4, dtype=torch.float64)
    weight, bias = torch.tensor([1.0, small, -1.0]).double(), torch.tensor([0.1, 1.0, 0.2]).double()
    wide = [t.detach().requires_grad_() for t in (x, matrix, weight, bias)]
    narrow = [t.detach().requires_grad_() for t in (channels_last(x.float()), *(t.float() for t in wide[1:]))]
    upward = torch.randn(x.shape, dtype=torch.float64)
    theirs = torch.autograd.grad((oracle(*wide, None, True) * upward).sum(), wide)
    z, _, _ = normalize(narrow[0], narrow[2], narrow[3], None, 1e-3, narrow[1], relu=True)
    ours = torch.autograd.grad((z * upward.float()).sum(), narrow)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4 * float(b.abs().max()))


def test_a_large_mean_does_not_cancel() -> None:
    x = torch.randn(8, 2, 4, 16, 16, dtype=torch.float64) + 1000
    _, mean, variance = normalize(channels_last(x.float()), None, None, None, 1e-5)
    torch.testing.assert_close(mean.double(), x.float().double().mean((0, 2, 3, 4)), rtol=1e-6, atol=0)
    torch.testing.assert_close(variance.double(), x.float().double().var((0, 2, 3, 4), correction=0), rtol=1e-4, atol=0)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_infinite_numbers_reach_the_result(value: float) -> None:
    x = torch.randn(2, 3, 4, 4, 4)
    x[0, 1, 0, 0, 0] = value
    z, _, _ = normalize(channels_last(x), None, None, None, 1e-5, torch.randn(3, 4, 4), relu=True)
    assert z[:, 1].isnan().all()
    assert z[:, 0].isfinite().all()


def test_second_derivatives() -> None:
    torch.manual_seed(0)
    x, matrix = torch.randn(2, 2, 4, 3, 3), torch.randn(2, 4, 4)

    def second(function: object, x: Tensor, matrix: Tensor) -> Tensor:
        x, matrix = x.detach().requires_grad_(), matrix.detach().requires_grad_()
        y = function(x, matrix)  # type: ignore[operator]
        (first,) = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), matrix)[0].double()

    weight, bias = torch.ones(2), torch.zeros(2)
    ours = second(lambda x, m: normalize(x, weight, bias, None, 1e-3, m)[0], channels_last(x), matrix)
    theirs = second(lambda x, m: oracle(x, m, weight.double(), bias.double(), None, False), x.double(), matrix.double())
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_fuses_where_there_are_kernels() -> None:
    x = channels_last(torch.randn(2, 3, 4, 5, 5))
    assert fuses_norm(x, 3)
    assert fuses_norm(x, 3, 4)
    assert not fuses_norm(channels_last(torch.randn(2, 3, 6, 5, 5)), 3, 6)
    assert not fuses_norm(x.contiguous(), 3)
    assert not fuses_norm(x.double(), 3)
    assert not fuses_norm(channels_last(torch.randn(1, 3, 1, 1, 1)), 3)  # no variance of one number
