"""Generated filters: the formula against a slow loop, gradients, and filters in the pose of the features."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import coattend as ca
from coattend.functional import dynamic_group_conv2d
from coattend.functional.dynamic import filter_positions, generated_filters, generating_bank
from coattend.functional.tables import turn_tables
from tests import oracles

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def tensors(order: int, slices: int = 2, hidden: int = 3, kernel: int = 3, size: int = 5) -> tuple[Tensor, ...]:
    v, z = torch.randn(2, 2 * slices, order, size, size + 1), torch.randn(2, hidden, order, size, size + 1)
    return v, z, torch.randn(slices, hidden, kernel, kernel), torch.randn(slices, kernel, kernel)


@pytest.mark.parametrize(("name", "kernel"), [("C4", 3), ("D4", 3), ("C2", 5), ("C4 clockwise", 3)])
def test_the_result_is_that_of_a_slow_loop(name: str, kernel: int) -> None:
    group = ca.get_group(name)
    arguments = tensors(group.order, kernel=kernel, size=4)
    expected = oracles.dynamic_conv(*(t.numpy() for t in arguments), group.planar)
    torch.testing.assert_close(dynamic_group_conv2d(*arguments, group), torch.tensor(expected), **EXACT)


def test_coefficients_of_a_basis_generate_the_taps_that_they_stand_for() -> None:
    """y = sum_m a[m, g](u) (v[g] * g.psi_m)(u), function by function of the basis, by plain convolutions."""
    group = ca.cyclic(8)
    turns = ca.groups.filter_turns(group, 5, "steerable")  # g taps coefficients
    v, z = torch.randn(1, 2, 8, 6, 6), torch.randn(1, 3, 8, 6, 6)
    weight, bias = torch.randn(1, 3, turns.shape[-1]), torch.randn(1, turns.shape[-1])
    expected = torch.zeros_like(v)
    for g in range(8):
        a = torch.einsum("mk,bmyx->bkyx", weight[0], z[:, :, g]) + bias[0, :, None, None]
        for number in range(turns.shape[-1]):
            function = turns[g, :, number].reshape(1, 1, 5, 5).expand(2, 1, 5, 5)
            smoothed = torch.nn.functional.conv2d(v[:, :, g], function, padding=2, groups=2)
            expected[:, :, g] += a[:, number : number + 1] * smoothed
    y = dynamic_group_conv2d(v, z, weight, bias, group, "steerable", kernel_size=5)
    torch.testing.assert_close(y, expected, **EXACT)


def test_gradients() -> None:
    group = ca.cyclic(2)
    arguments = [t.requires_grad_() for t in tensors(2, slices=1, hidden=2, size=2)]
    assert torch.autograd.gradcheck(lambda *a: dynamic_group_conv2d(*a, group), arguments)
    assert torch.autograd.gradgradcheck(lambda *a: dynamic_group_conv2d(*a, group).sum(1), arguments)


def test_without_a_context_the_filters_are_constant() -> None:
    group = ca.dihedral(4)
    v, z, weight, bias = tensors(8)
    bank = generating_bank(weight, bias, turn_tables(group, 3, "free"))
    constant = filter_positions(v, z[:, :0], bank[-1:])
    torch.testing.assert_close(constant, filter_positions(v, torch.zeros_like(z), bank), **EXACT)
    assert generated_filters(z[:, :0], bank[-1:]).shape == (1, 2, 9, 8, 1, 1)
    assert generated_filters(z, bank).shape == (2, 2, 9, 8, 5, 6)


def test_sums_of_narrow_types_are_wide() -> None:
    group = ca.cyclic(4)
    arguments = [t.bfloat16() for t in tensors(4, kernel=5)]
    y = dynamic_group_conv2d(*arguments, group)
    assert y.dtype == torch.bfloat16
    expected = dynamic_group_conv2d(*(t.double() for t in arguments), group)
    torch.testing.assert_close(y.double(), expected, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 3, 4, 5, 5), (2, 3, 4, 5, 5), (2, 3, 3, 3), (2, 3, 3)), "a multiple of 2 channels"),
        (((2, 4, 4, 5, 5), (2, 3, 4, 5, 4), (2, 3, 3, 3), (2, 3, 3)), "the same batch, poses and size"),
        (((2, 4, 4, 5, 5), (2, 2, 4, 5, 5), (2, 3, 3, 3), (2, 3, 3)), "a map z with 3 channels"),
        (((2, 4, 8, 5, 5), (2, 3, 8, 5, 5), (2, 3, 3, 3), (2, 3, 3)), "a map v with 4 poses"),
        (((2, 4, 4, 5, 5), (2, 3, 4, 5, 5), (2, 3, 4, 4), (2, 4, 4)), "an odd kernel"),
        (((2, 4, 4, 5, 5), (2, 3, 4, 5, 5), (2, 3, 3, 3), (1, 3, 3)), r"a bias \(2, 3, 3\)"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dynamic_group_conv2d(*(torch.zeros(shape) for shape in shapes), ca.cyclic(4))


def test_gradients_of_coefficients() -> None:
    group = ca.cyclic(8)
    k = ca.groups.filter_turns(group, 3, "steerable").shape[-1]
    shapes = (1, 2, 8, 2, 2), (1, 2, 8, 2, 2), (1, 2, k), (1, k)
    inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(lambda *a: dynamic_group_conv2d(*a, group, "steerable", kernel_size=3), inputs)
