"""DREN's layers are the group convolutions over quarter turns counted clockwise."""

from __future__ import annotations

import pytest
import torch

import coattend as ca
from coattend.nn.dren import CLOCKWISE

nn = ca.nn
SWAP = torch.tensor([0, 3, 2, 1])  # clockwise to counter-clockwise


def cw(f: torch.Tensor, r: int) -> torch.Tensor:
    return torch.rot90(f, -r, (-2, -1))


@pytest.mark.parametrize("kernel_size", [3, 4, 5])
def test_dren_formulas(kernel_size: int) -> None:
    """cycle, isotonic and decycle as [LI18]'s code defines them."""
    conv2d = torch.nn.functional.conv2d
    x, maps = torch.randn(2, 3, 9, 9), torch.randn(2, 3, 4, 9, 9)
    cycle, isotonic = nn.CycleConv2d(3, 5, kernel_size), nn.IsotonicConv2d(3, 5, kernel_size)
    decycle = nn.DecycleConv2d(3, 5, kernel_size)
    for layer in (cycle, isotonic, decycle):
        torch.nn.init.normal_(layer.bias)
    for r in range(4):
        torch.testing.assert_close(cycle(x)[:, :, r], conv2d(x, cw(cycle.weight, r), cycle.bias))
        summed = sum(conv2d(maps[:, :, s], cw(isotonic.weight[:, :, (s - r) % 4], r)) for s in range(4))
        torch.testing.assert_close(isotonic(maps)[:, :, r], summed + isotonic.bias[:, None, None])
    summed = sum(conv2d(maps[:, :, s], cw(decycle.weight, s)) for s in range(4))
    torch.testing.assert_close(decycle(maps), summed + decycle.bias[:, None, None])


@pytest.mark.parametrize("kernel_size", [3, 4, 5])
def test_the_isotonic_layer_is_the_group_convolution_with_orientations_1_and_3_swapped(kernel_size: int) -> None:
    isotonic, conv = nn.IsotonicConv2d(3, 5, kernel_size), nn.GroupConv2d(3, 5, kernel_size, "p4")
    conv.load_state_dict({"weight": isotonic.weight[:, :, SWAP], "bias": isotonic.bias})
    x = torch.randn(2, 3, 4, 9, 9)
    swapped = conv(x[:, :, SWAP])[:, :, SWAP]
    torch.testing.assert_close(isotonic(x), swapped, rtol=1e-12, atol=1e-12)
    assert (isotonic(x) - conv(x)).abs().max() > 0.1  # the swap is needed


def test_they_are_thin_and_equivariant() -> None:
    net = torch.nn.Sequential(
        nn.CycleConv2d(1, 3, 3),
        nn.CoAttention(3, CLOCKWISE),
        nn.IsotonicConv2d(3, 3, 3),
        nn.DecycleConv2d(3, 2, 4, attention=True),
    )
    ca.assert_equivariant(net, torch.randn(2, 1, 12, 10), CLOCKWISE)
    ca.assert_equivariant(net, torch.randn(2, 1, 12, 10), "p4")  # images know no order of the poses
    maps = torch.randn(1, 3, 4, 8, 8)
    ca.assert_equivariant(net[2], maps, CLOCKWISE)
    with pytest.raises(AssertionError, match="turn 90"):
        ca.assert_equivariant(net[2], maps, "p4")
