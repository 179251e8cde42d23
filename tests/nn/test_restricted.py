"""Group convolutions over some relative poses: exact, equal to slow loops, and with as much less work as promised."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import coattend as ca
from coattend.functional.pose_blocks import pose_blocks
from coattend.nn import GroupConv2d, LiftingConv2d, ProjectionConv2d, SliceCoAttentiveConv2d
from tests import oracles

KINDS = (GroupConv2d, SliceCoAttentiveConv2d)
GEOMETRIES = [
    {},
    {"padding": 1, "stride": 2},
    {"padding": 2, "dilation": 2, "bias": False},
    {"groups": 2, "padding": 1},
    {"padding": 1, "padding_mode": "circular"},
]


def subsets(name: str, count: int = 6) -> list[tuple[int, ...]]:
    """One pose, all but one, a subgroup, a coset, and some at random."""
    order = ca.get_group(name).order
    chance = random.Random(name)
    some = [tuple(sorted(chance.sample(range(order), chance.randint(1, order - 1)))) for _ in range(count)]
    return [(order - 1,), tuple(range(1, order)), tuple(range(0, order, 2)), tuple(range(1, order, 2)), *some]


def made(kind: type, name: str, channels: tuple[int, int] = (4, 6), **options: object) -> torch.nn.Module:
    layer = kind(*channels, 3, name, **options)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


def both_ways(layer: torch.nn.Module) -> list[torch.nn.Module]:
    """By blocks of poses and by zeros, whichever of the two the layer would choose."""
    if not isinstance(layer, GroupConv2d):
        return [layer]
    other = copy.deepcopy(layer)
    other.in_blocks = not layer.in_blocks
    return [layer, other]


@pytest.mark.parametrize("name", ["C4", "D4", "D2", "C4 clockwise"])
@pytest.mark.parametrize("kind", KINDS)
def test_commutes_with_every_element(kind: type, name: str) -> None:
    G = ca.get_group(name)
    for relative in subsets(name):
        for geometry in GEOMETRIES:
            x = torch.randn(2, 4, G.order, 9, 9)
            for layer in both_ways(made(kind, name, relative=relative, **geometry)):
                ca.assert_equivariant(layer, x, G, tol=1e-12)


@pytest.mark.parametrize("name", ["C8", "D8"])
@pytest.mark.parametrize("kind", KINDS)
def test_interpolated_groups_commute_exactly_with_quarter_turns(kind: type, name: str) -> None:
    G = ca.get_group(name)
    for relative in subsets(name, 2):
        for layer in both_ways(made(kind, name, relative=relative, padding=1)):
            errors = ca.equivariance_error(layer, torch.randn(1, 4, G.order, 8, 8), G)
            assert max(errors[g] for g in G.exact_elements) < 1e-12
            assert max(errors.values()) > 1e-3


def test_leaving_out_input_poses_instead_of_relative_ones_is_not_equivariant() -> None:
    layer = made(GroupConv2d, "C4", padding=1)
    x = torch.randn(1, 4, 4, 8, 8)

    class SomeInputs(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return layer(x * torch.tensor([1.0, 1, 0, 0])[:, None, None])

    errors = ca.equivariance_error(SomeInputs(), x, ca.get_group("C4"))
    assert min(error for g, error in errors.items() if g != 0) > 0.1


@pytest.mark.parametrize("name", ["C4", "D4"])
def test_equals_the_slow_loops(name: str) -> None:
    G = ca.get_group(name)
    tables = (G.product, G.inverse, G.planar)
    for relative in subsets(name, 1)[2:]:
        for geometry in ({"padding": 1}, {"stride": 2, "dilation": 2, "padding": 2}):
            x = torch.randn(1, 1, G.order, 5, 6)
            conv, sliced = (made(kind, name, (1, 2), relative=relative, **geometry) for kind in KINDS)
            whole = torch.zeros(2, 1, G.order, 3, 3)
            attention = torch.zeros(2, G.order, G.order)
            for place, t in enumerate(relative):
                whole[:, :, t] = conv.weight[:, :, place]
            biases = [layer.bias.detach().numpy() for layer in (conv, sliced)]
            expected = oracles.group_conv(x.numpy(), whole.detach().numpy(), biases[0], *tables, **geometry)
            for layer in both_ways(conv):
                torch.testing.assert_close(layer(x), torch.tensor(expected), rtol=1e-12, atol=1e-11)
            for place, t in enumerate(relative):
                whole[:, :, t] = sliced.weight[:, :, place]
                attention[:, t] = sliced.attention.weight.unflatten(0, (2, len(relative)))[:, place]
            arrays = whole.detach().numpy(), biases[1], attention.detach().numpy()
            expected = oracles.slice_conv(x.numpy(), *arrays, *tables, **geometry)
            torch.testing.assert_close(sliced(x), torch.tensor(expected), rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("name", ["C4", "D4", "C8"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_relative_poses_are_the_unrestricted_layer_bit_for_bit(kind: type, name: str) -> None:
    G = ca.get_group(name)
    plain, every = made(kind, name, padding=1), made(kind, name, padding=1, relative=G.elements)
    every.load_state_dict(plain.state_dict())
    x = torch.randn(3, 4, G.order, 9, 9)
    assert torch.equal(plain(x), every(x))
    assert not every.is_restricted
    assert repr(plain) == repr(every)


@pytest.mark.parametrize("kind", KINDS)
def test_restricting_a_layer_leaves_the_sum_over_the_rest(kind: type) -> None:
    whole = made(kind, "D4", padding=1, groups=2)
    cut, zeroed = whole.restricted((1, 2, 5)), copy.deepcopy(whole)
    with torch.no_grad():
        zeroed.weight[:, :, [0, 3, 4, 6, 7]] = 0
    x = torch.randn(2, 4, 8, 9, 9)
    for layer in both_ways(cut):
        torch.testing.assert_close(layer(x), zeroed(x), rtol=1e-12, atol=1e-12)
    again = made(kind, "D4", padding=1, groups=2, relative=(1, 2, 5))
    again.load_state_dict(cut.state_dict())
    assert torch.equal(again(x), cut(x))
    cut = cut.restricted((5,))
    assert cut.weight.shape[2] == 1
    with pytest.raises(ValueError, match=r"no weights for the relative poses \[1\]; choose among \(5,\)"):
        cut.restricted((1, 5))


@pytest.mark.parametrize("relative", [(0, 4), (0, 1), (3,), (0, 1, 2, 5)])
def test_the_convolution_makes_so_many_products_less(relative: tuple[int, ...]) -> None:
    def products(layer: torch.nn.Module) -> int:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            layer(torch.randn(2, 16, 8, 10, 10))
        return counter.get_total_flops()

    for kind in KINDS:
        full, part = kind(16, 16, 3, "D4"), kind(16, 16, 3, "D4", relative=relative)
        assert products(part) * 8 == products(full) * len(relative)


def test_poses_that_read_the_same_are_one_block() -> None:
    for relative, blocks in (((0, 2), 2), ((1, 3), 2), ((0, 1), 4), ((2,), 4), ((0, 1, 2, 3), 1)):
        assert len(pose_blocks(ca.get_group("C4"), relative).outputs) == blocks
    assert pose_blocks(ca.get_group("D4"), (0, 2, 4, 6)).outputs.shape == (2, 4)  # a subgroup of order 4


@pytest.mark.parametrize("in_blocks", [True, False])
def test_gradients_are_those_of_the_layer_with_zeros(in_blocks: bool) -> None:
    part, whole = made(GroupConv2d, "D4", relative=(0, 1, 6)), made(GroupConv2d, "D4")
    part.in_blocks = in_blocks
    with torch.no_grad():
        whole.weight.zero_()[:, :, [0, 1, 6]] = part.weight
        whole.bias.copy_(part.bias)
    x = torch.randn(2, 4, 8, 7, 7, requires_grad=True)
    up = torch.randn(2, 6, 8, 5, 5)
    ours = torch.autograd.grad((part(x) * up).sum(), (x, part.weight, part.bias))
    theirs = torch.autograd.grad((whole(x) * up).sum(), (x, whole.weight, whole.bias))
    for a, b in zip(ours, (theirs[0], theirs[1][:, :, [0, 1, 6]], theirs[2]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


def test_a_batch_in_parts_is_the_batch() -> None:
    layer = GroupConv2d(16, 16, 3, "C4", relative=(0, 1), padding=1)
    x = torch.randn(40, 16, 4, 16, 16)  # 10 MB of gathered poses
    assert layer.in_blocks
    torch.testing.assert_close(layer(x), torch.cat([layer(one) for one in x.split(1)]), rtol=1e-12, atol=1e-12)


def test_few_channels_and_single_pixels_are_convolved_with_zeros() -> None:
    assert GroupConv2d(16, 16, 3, "p4", relative=(0, 1)).in_blocks
    assert not GroupConv2d(10, 10, 3, "p4", relative=(0, 1)).in_blocks
    assert not GroupConv2d(96, 96, 1, "p4", relative=(0, 1)).in_blocks


def test_wrong_relative_poses_are_refused() -> None:
    for relative in ((), (0, 4), (-1,), (1, 1), ("a",)):
        with pytest.raises(ValueError, match="expects relative to hold different elements of C4, numbers from 0 to 3"):
            GroupConv2d(2, 2, 3, "C4", relative=relative)
    for kind in (LiftingConv2d, ProjectionConv2d):
        with pytest.raises(
            TypeError, match=rf"{kind.__name__}.__init__\(\) got an unexpected keyword argument 'relative'"
        ):
            kind(2, 2, 3, "C4", relative=(0,))
        with pytest.raises(ValueError, match=f"{kind.__name__} has no relative poses to choose from"):
            kind(2, 2, 3, "C4").restricted((0,))
    model = torch.nn.Sequential(GroupConv2d(2, 2, 3, "C4"))
    with pytest.raises(ValueError, match="no group convolution is called 'conv'; those of this model are 0"):
        ca.models.restricted(model, {"conv": (0,)})


def test_prints_its_relative_poses() -> None:
    assert repr(GroupConv2d(8, 8, 3, "C4", relative=[2, 0])) == (
        "GroupConv2d(8, 8, kernel_size=3, stride=1, group=C4, relative=(0, 2))"
    )
