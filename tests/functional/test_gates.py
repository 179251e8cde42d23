"""Gates against the slow loop, and 1x1 group convolutions for every group."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import coattend as ca
from coattend.functional import group_conv2d, group_gate, group_gate_mask, pose_linear
from tests import oracles
from tests.example_groups import ALL


def weights(channels: int, order: int, k: int = 3, groups: int = 1, hidden: int = 2) -> list[torch.Tensor]:
    shapes = (groups * hidden, channels // groups, order), (channels, hidden, order), (1, 2, order, k, k)
    return [torch.randn(shape) for shape in shapes]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("name", ["C1", "C4", "D4"])
def test_gates_equal_the_slow_loop(name: str, groups: int) -> None:
    G = ca.get_group(name)
    x, arrays = torch.randn(2, 4, G.order, 4, 5), weights(4, G.order, groups=groups)
    expected = oracles.gate_mask(x.numpy(), *(a.numpy() for a in arrays), G.product, G.inverse, G.planar, groups=groups)
    np.testing.assert_allclose(group_gate_mask(x, *arrays, G).numpy(), expected, rtol=0, atol=1e-13)
    torch.testing.assert_close(group_gate(x, *arrays, G), torch.tensor(expected) * x, rtol=0, atol=1e-12)


def test_gradients_are_those_of_differences() -> None:
    G, x, arrays = ca.cyclic(4), torch.randn(1, 3, 4, 3, 3), weights(3, 4)
    tensors = [t.requires_grad_() for t in (x, *arrays)]
    assert torch.autograd.gradcheck(lambda *t: group_gate(*t, G), tensors)


def test_gates_do_not_depend_on_the_memory_layout() -> None:
    G, x, arrays = ca.dihedral(4), torch.randn(2, 3, 8, 5, 5), weights(3, 8)
    by_pixel = x.flatten(1, 2).contiguous(memory_format=torch.channels_last).unflatten(1, (3, 8))
    assert not by_pixel.is_contiguous()
    torch.testing.assert_close(group_gate(by_pixel, *arrays, G), group_gate(x, *arrays, G), rtol=0, atol=1e-13)


def test_gates_of_steerable_filters() -> None:
    G, x = ca.cyclic(8), torch.randn(2, 3, 8, 5, 5)
    squeeze, excite, _ = weights(3, 8)
    y = group_gate(x, squeeze, excite, torch.randn(1, 2, 8, 11), G, "steerable", kernel_size=5)
    assert y.shape == x.shape


def test_wrong_weights_are_answered() -> None:
    squeeze, excite, spatial = weights(3, 4)
    with pytest.raises(
        ValueError, match=r"group_gate expects squeeze \(hidden, channels / groups, group\).*got \(2, 3, 4"
    ):
        group_gate(torch.randn(1, 4, 4, 5, 5), squeeze, excite, spatial, ca.cyclic(4))
    with pytest.raises(ValueError, match="group_gate expects x to be a dense floating-point tensor"):
        group_gate(torch.randn(1, 3, 5, 5), squeeze, excite, spatial, ca.cyclic(4))
    with pytest.raises(ValueError, match=r"pose_linear expects a weight \(out, 3 / 1, 4\)"):
        pose_linear(torch.randn(1, 3, 4), torch.randn(2, 3, 8), ca.cyclic(4))


@pytest.mark.parametrize("name", ALL)
def test_linear_maps_equal_the_slow_loop_and_the_convolution(name: str) -> None:
    G = ALL[name]()
    x, weight = torch.randn(2, 4, G.order, 2, 3), torch.randn(6, 2, G.order)
    y = pose_linear(x, weight, G, groups=2)
    halves = [oracles.linear(x[:, i].numpy(), weight[o].numpy(), G.product, G.inverse) for i, o in PARTS]
    np.testing.assert_allclose(y.numpy(), np.concatenate(halves, axis=1), rtol=0, atol=1e-12)
    torch.testing.assert_close(pose_linear(x.flatten(3), weight, G, groups=2), y.flatten(3), rtol=0, atol=1e-13)
    torch.testing.assert_close(pose_linear(x[..., 0, 0], weight, G, groups=2), y[..., 0, 0], rtol=0, atol=1e-13)
    if G.planar is not None and G.is_exact:
        convolved = group_conv2d(x, weight[..., None, None], None, G, groups=2)
        torch.testing.assert_close(y, convolved, rtol=0, atol=1e-13)


PARTS = ((slice(0, 2), slice(0, 3)), (slice(2, 4), slice(3, 6)))
