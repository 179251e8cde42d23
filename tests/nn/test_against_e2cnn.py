"""An independent oracle: e2cnn's steerable filters for regular fields, loaded into our layers."""

from __future__ import annotations

import pytest
import torch

import coattend as ca
from tests.e2cnn_oracle import enn, gspaces, regular_conv

SPACES = {"C4": lambda: gspaces.Rot2dOnR2(N=4), "D4": lambda: gspaces.FlipRot2dOnR2(N=4)}


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("kernel_size", [3, 5])
def test_e2cnn_filters_give_the_same_maps_without_a_permutation(name: str, kernel_size: int) -> None:
    torch.set_default_dtype(torch.float32)
    space, group = SPACES[name](), ca.get_group(name)
    n, k = group.order, kernel_size
    their_lift = regular_conv(space, 3, 4, k, lifting=True)
    their_conv = regular_conv(space, 4, 5, k, lifting=False)
    for layer in (their_lift, their_conv):
        layer.bias.data.normal_()
        layer.train().eval()  # expands filters and biases anew

    our_lift = ca.nn.LiftingConv2d(3, 4, k, group)
    our_conv = ca.nn.GroupConv2d(4, 5, k, group)
    with torch.no_grad():
        our_lift.weight.copy_(their_lift.filter.view(4, n, 3, k, k)[:, 0])
        our_lift.bias.copy_(their_lift.expanded_bias.view(4, n)[:, 0])
        our_conv.weight.copy_(their_conv.filter.view(5, n, 4, n, k, k)[:, 0])
        our_conv.bias.copy_(their_conv.expanded_bias.view(5, n)[:, 0])

        x = torch.randn(2, 3, 12, 15)
        theirs = their_conv(their_lift(enn.GeometricTensor(x, their_lift.in_type))).tensor
        ours = our_conv(our_lift(x))
    assert theirs.std() > 0.1
    torch.testing.assert_close(ours.flatten(1, 2), theirs, rtol=1e-5, atol=1e-5)

    # The order of the poses matters: with any two of them swapped the maps differ.
    swapped = ours.index_select(2, torch.tensor([0, 3, 2, 1, *range(4, n)]))
    assert (swapped.flatten(1, 2) - theirs).abs().max() > 0.1
