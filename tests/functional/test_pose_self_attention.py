"""Self-attention over poses against the slow loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import coattend as ca
from coattend.functional import pose_attention_weights, pose_self_attention
from tests import oracles
from tests.example_groups import ALL


def tensors(order: int, channels: int = 4, heads: int = 2) -> list[torch.Tensor]:
    return [
        torch.randn(2, channels, order, 2, 3),
        torch.randn(3 * channels, channels, order),
        torch.randn(heads, order),
    ]


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("name", ALL)
def test_equals_the_slow_loop(name: str, heads: int) -> None:
    G = ALL[name]()
    x, weight, bias = tensors(G.order, heads=heads)
    y, weights = oracles.pose_self_attention(x.numpy(), weight.numpy(), bias.numpy(), G.product, G.inverse)
    np.testing.assert_allclose(pose_self_attention(x, weight, bias, G).numpy(), y, rtol=0, atol=1e-11)
    np.testing.assert_allclose(pose_attention_weights(x, weight, bias, G).numpy(), weights, rtol=0, atol=1e-12)


def test_any_number_of_axes_and_any_memory_layout() -> None:
    G = ca.dihedral(4)
    x, weight, bias = tensors(8)
    y = pose_self_attention(x, weight, bias, G)
    torch.testing.assert_close(pose_self_attention(x.flatten(3), weight, bias, G), y.flatten(3), rtol=0, atol=1e-13)
    by_pixel = x.flatten(1, 2).contiguous(memory_format=torch.channels_last).unflatten(1, (4, 8))
    torch.testing.assert_close(pose_self_attention(by_pixel, weight, bias, G), y, rtol=0, atol=1e-13)


def test_gradients_are_those_of_differences() -> None:
    G = ca.dihedral(3)
    inputs = [t.requires_grad_() for t in (torch.randn(1, 2, 6, 2, 1), torch.randn(6, 2, 6), torch.randn(2, 6))]
    assert torch.autograd.gradcheck(lambda *t: pose_self_attention(*t, G), inputs)


def test_large_scores_do_not_overflow() -> None:
    G = ca.cyclic(4)
    x, weight, bias = tensors(4)
    assert pose_self_attention(1e3 * x, weight, bias, G).isfinite().all()


def test_wrong_weights_are_answered() -> None:
    x, weight, bias = tensors(4)
    with pytest.raises(ValueError, match=r"pose_self_attention expects a weight \(12, 4, 4\) and a bias \(heads, 4\)"):
        pose_self_attention(x, weight[:8], bias, ca.cyclic(4))
    with pytest.raises(ValueError, match="heads that divide the channels"):
        pose_self_attention(x, weight, torch.randn(3, 4), ca.cyclic(4))
