"""Self-attention along the positions: the formula against a slow loop, gradients, and the size of its tensors."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import coattend as ca
from coattend.functional import group_self_attention
from tests import oracles

EXACT = {"rtol": 1e-11, "atol": 1e-12}


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("name", ["C4", "D4", "C8", "C4 clockwise"])
def test_the_result_is_that_of_a_slow_loop(name: str, window: int | None) -> None:
    group = ca.get_group(name)
    q, k, v = torch.randn(3, 1, 8, group.order, 2, 4)
    frequencies = torch.randn(2, 2, 2)
    expected = oracles.self_attention(*(t.numpy() for t in (q, k, v, frequencies)), group.planar, window)
    actual = group_self_attention(q, k, v, frequencies, group, window)
    torch.testing.assert_close(actual, torch.tensor(expected), **EXACT)


def test_gradients() -> None:
    group = ca.cyclic(2)
    inputs = [torch.randn(1, 4, 2, 2, 3, requires_grad=True) for _ in range(3)]
    frequencies = torch.randn(1, 2, 2, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *a: group_self_attention(*a, group), (*inputs, frequencies))


class LargestTensor(TorchDispatchMode):
    """The largest number of elements of any result."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        for result in results if isinstance(results, (tuple, list)) else (results,):
            if isinstance(result, torch.Tensor):
                self.size = max(self.size, result.numel())
        return results


def test_no_tensor_is_larger_than_the_three_maps() -> None:
    """Neither positions times positions nor poses times poses: 8 poses of 256 positions."""
    torch.set_default_dtype(torch.float32)
    q, k, v = torch.randn(3, 1, 4, 8, 16, 16).requires_grad_()
    with LargestTensor() as largest:
        group_self_attention(q, k, v, torch.randn(2, 1, 2), ca.dihedral(4)).sum().backward()
    assert largest.size == 3 * v.numel()


@pytest.mark.parametrize(
    ("shape", "frequencies", "group", "message"),
    [
        ((1, 4, 4, 2, 2), (1, 1, 2), ca.cyclic(4), "with 2 channels and 4 poses"),
        ((1, 4, 8, 2, 2), (1, 2, 2), ca.cyclic(4), "4 poses"),
        ((1, 4, 4, 2, 2), (1, 2, 3), ca.cyclic(4), r"frequencies \(heads, d / 2, 2\)"),
        ((1, 4, 2, 2, 2), (1, 2, 2), ca.FiniteGroup([[0, 1], [1, 0]]), "is a bare table"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    shape: tuple[int, ...], frequencies: tuple[int, ...], group: ca.FiniteGroup, message: str
) -> None:
    x = torch.zeros(shape)
    with pytest.raises(ValueError, match=message):
        group_self_attention(x, x, x, torch.zeros(frequencies), group)


def test_gradients_within_windows() -> None:
    group = ca.cyclic(4)
    inputs = [torch.randn(1, 4, 4, 2, 4, requires_grad=True) for _ in range(3)]
    frequencies = torch.randn(1, 2, 2, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *a: group_self_attention(*a, group, 2), (*inputs, frequencies))
