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


def eq_3(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """[RH20] Eq. 3 to the letter: ``y(u, r) = sum_{r', u'} x(u + u', r') W(theta_r u', r' - r)``, one sum at a time.

    u' = (x to the right, y up) from the filter's centre; theta_r turns by r quarter turns, counter-clockwise.
    """
    k = weight.shape[-1]
    half = k // 2
    height, width = (size - 2 * half for size in x.shape[-2:])
    y = torch.zeros(len(x), len(weight), 4, height, width)
    for r in range(4):
        cos, sin = (1, 0, -1, 0)[r], (0, 1, 0, -1)[r]
        for other in range(4):
            for right in range(-half, half + 1):
                for up in range(-half, half + 1):
                    turned_right, turned_up = cos * right - sin * up, sin * right + cos * up
                    tap = weight[:, :, (other - r) % 4, half - turned_up, half + turned_right]
                    seen = x[:, :, other, half - up : half - up + height, half + right : half + right + width]
                    y[:, :, r] += torch.einsum("oi,bihw->bohw", tap, seen)
    return y


@pytest.mark.parametrize("kernel_size", [3, 5])
def test_eq_3_to_the_letter_is_the_isotonic_layer_and_not_the_counter_clockwise_one(kernel_size: int) -> None:
    isotonic, conv = (
        nn.IsotonicConv2d(2, 3, kernel_size, bias=False),
        nn.GroupConv2d(2, 3, kernel_size, "p4", bias=False),
    )
    conv.load_state_dict(isotonic.state_dict())
    x = torch.randn(2, 2, 4, 8, 9)
    printed = eq_3(x, isotonic.weight.detach())
    torch.testing.assert_close(isotonic(x), printed, rtol=1e-12, atol=1e-12)
    assert (conv(x) - printed).abs().max() > 0.1
    # The same function once poses are numbered the other way round: r -> -r, in input, filter and output.
    conv.weight.data = isotonic.weight.data[:, :, SWAP]
    torch.testing.assert_close(conv(x[:, :, SWAP])[:, :, SWAP], printed, rtol=1e-12, atol=1e-12)
