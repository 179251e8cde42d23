"""Gates on maps, on images and on the slices of a convolution."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import coattend as ca
from coattend.functional import group_gate_mask
from tests import oracles
from tests.example_groups import EXACT, quaternions

nn = ca.nn


def strong(layer: torch.nn.Module) -> torch.nn.Module:
    """With weights of order 1, so that gates are neither open nor closed everywhere."""
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("size", [(5, 5), (6, 6)])
def test_commute_with_every_element(name: str, size: tuple[int, int]) -> None:
    G = ca.get_group(name)
    x = torch.randn(2, 4, G.order, *size)
    ca.assert_equivariant(strong(nn.GroupGate2d(4, G)), x, G, tol=1e-12)
    ca.assert_equivariant(strong(nn.GroupGate2d(4, G, reduction=1, kernel_size=3, groups=2)), x, G, tol=1e-12)
    ca.assert_equivariant(strong(nn.SliceGate2d(4, G, kernel_size=5, slices=2)), x, G, tol=1e-12)
    ca.assert_equivariant(strong(nn.LiftingGate2d(3, G)), torch.randn(2, 3, *size), G, tol=1e-12)
    conv = strong(nn.SliceCoAttentiveConv2d(4, 2, 3, G, score="gate"))
    ca.assert_equivariant(conv, x, G, tol=1e-12)


@pytest.mark.parametrize("filters", ["free", "steerable", "bicubic", ca.Rings((0, 2, 2, 1, 1))])
@pytest.mark.parametrize("name", ["C8", "D8"])
def test_exact_subgroups_stay_exact(name: str, filters: ca.groups.Filters) -> None:
    G = ca.get_group(name)
    gates = {
        strong(nn.GroupGate2d(3, G, filters=filters)): torch.randn(2, 3, G.order, 6, 6),
        strong(nn.LiftingGate2d(3, G, filters=filters)): torch.randn(2, 3, 7, 7),
    }
    for gate, x in gates.items():
        errors = ca.equivariance_error(gate, x, G)
        assert max(errors[g] for g in G.exact_elements) <= 1e-12


class PerPose(nn.GroupGate2d):
    """A gate of channels whose weights belong to pairs of poses instead of relative poses."""

    def mask(self, x: Tensor) -> Tensor:
        mask = super().mask(x)
        return mask * torch.linspace(0.5, 1.5, x.shape[2])[:, None, None]


class Unturned(nn.GroupGate2d):
    """A spatial gate with the same filter in every pose."""

    def mask(self, x: Tensor) -> Tensor:
        alpha_c = self.channel(x)
        mean = (x * alpha_c[..., None, None]).mean(1, keepdim=True).flatten(1, 2)
        taps = self.spatial.weight[0, :1, 0].expand(x.shape[2], 1, 7, 7)
        maps = torch.nn.functional.conv2d(mean, taps, padding=3, groups=x.shape[2]).unflatten(1, (1, -1))
        return 1 - maps.sigmoid() * alpha_c[..., None, None]


@pytest.mark.parametrize("form", [PerPose, Unturned])
@pytest.mark.parametrize("name", ["C4", "D4"])
def test_weights_by_pose_and_filters_that_do_not_turn_break_every_element(form: type, name: str) -> None:
    G = ca.get_group(name)
    errors = ca.equivariance_error(strong(form(4, G)), torch.randn(2, 4, G.order, 6, 6), G)
    assert all(errors[g] > 1e-3 for g in G.elements if g != 0)


def test_one_pose_instead_of_the_maximum_over_poses_breaks_every_turn() -> None:
    class FirstPose(nn.LiftingGate2d):
        def mask(self, x: Tensor) -> Tensor:
            alpha_c = self.channel(x.unsqueeze(2))[..., None]
            maps = torch.stack([(x * alpha_c).mean(1), (x * alpha_c).amax(1)], 1)
            return 1 - self.spatial(maps)[:, :, 0].sigmoid() * alpha_c

    errors = ca.equivariance_error(strong(FirstPose(3, "p4")), torch.randn(2, 3, 6, 6), "p4")
    assert all(errors[g] > 1e-3 for g in (1, 2, 3))


def test_layers_equal_the_functions_and_the_slow_loop() -> None:
    G, x = ca.dihedral(4), torch.randn(2, 4, 8, 5, 5)
    gate = strong(nn.GroupGate2d(4, G, kernel_size=3))
    mask = group_gate_mask(x, gate.channel.squeeze, gate.channel.excite, gate.spatial.weight, G)
    torch.testing.assert_close(gate.mask(x), mask, rtol=0, atol=1e-13)
    torch.testing.assert_close(gate(x), mask * x, rtol=0, atol=1e-13)


def test_the_gate_of_images_is_that_of_the_formula() -> None:
    G, x = ca.dihedral(4), torch.randn(2, 3, 5, 5)
    gate = strong(nn.LiftingGate2d(3, G, kernel_size=3))
    squeeze, excite = gate.channel.squeeze[..., 0], gate.channel.excite[..., 0]
    logits = sum((s @ squeeze.T).relu() @ excite.T for s in (x.mean((2, 3)), x.amax((2, 3))))
    alpha_c = logits.sigmoid()[..., None, None]
    maps = torch.stack([(alpha_c * x).mean(1), (alpha_c * x).amax(1)], dim=1)
    lifted = oracles.lift(
        maps.detach().numpy(), gate.spatial.weight.detach().numpy(), [0.0], G.product, G.inverse, G.planar, padding=1
    )
    alpha_x = torch.tensor(lifted).amax(2).sigmoid()
    torch.testing.assert_close(gate.mask(x), 1 - alpha_x * alpha_c, rtol=0, atol=1e-13)
    torch.testing.assert_close(gate(x), gate.mask(x) * x)


@pytest.mark.parametrize(
    ("name", "relative"), [("C4", None), ("C4", (0, 2)), ("C4", (1, 3)), ("D4", None), ("D4", (0, 1, 5))]
)
def test_gated_slices_equal_the_slow_loop(name: str, relative: tuple[int, ...] | None) -> None:
    G = ca.get_group(name)
    x = 0.1 * torch.randn(2, 2, G.order, 5, 5)  # small: exp overflows in the oracle
    conv = strong(nn.SliceCoAttentiveConv2d(2, 3, 3, G, score="gate", relative=relative))
    slices = conv.relative
    z = torch.empty(2, 3, len(slices), G.order, 3, 3)
    for i, t in enumerate(slices):
        for g in G.elements:
            taps = torch.tensor(oracles.turned(conv.weight[:, :, i].detach().numpy(), G.planar[g]))
            z[:, :, i, g] = torch.nn.functional.conv2d(x[:, :, G.product[g, t]], taps)
    gate = conv.attention
    arrays = (p.detach().numpy() for p in (gate.channel.squeeze, gate.channel.excite, gate.spatial.weight))
    mask = oracles.gate_mask(z.flatten(1, 2).numpy(), *arrays, G.product, G.inverse, G.planar, groups=3)
    expected = (torch.tensor(mask) * z.flatten(1, 2)).unflatten(1, (3, -1)).sum(2) + conv.bias[:, None, None, None]
    torch.testing.assert_close(conv(x), expected, rtol=0, atol=1e-12)
    ca.assert_equivariant(conv, x, G, tol=1e-12)


def test_restricted_gated_slices_keep_their_weights() -> None:
    conv, x = strong(nn.SliceCoAttentiveConv2d(2, 3, 3, "p4", score="gate")), torch.randn(2, 2, 4, 5, 5)
    small = conv.restricted((0, 2))
    assert small.attention.channels == 6
    assert small.attention.channel.squeeze.shape == (6, 2, 4)
    assert small.attention.channel.excite.shape == (6, 2, 4)
    by_slice = conv.attention.channel.excite.unflatten(0, (3, 4))
    assert torch.equal(small.attention.channel.excite.unflatten(0, (3, 2)), by_slice[:, [0, 2]])
    assert torch.equal(small.attention.channel.squeeze, conv.attention.channel.squeeze[:, [0, 2]])
    assert small(x).shape == conv(x).shape
    ca.assert_equivariant(small, x, "p4", tol=1e-12)


def test_gradients_are_those_of_differences() -> None:
    for layer, shape in (
        (nn.LiftingGate2d(2, "p4", kernel_size=3), (1, 2, 3, 3)),
        (nn.SliceCoAttentiveConv2d(1, 2, 1, "C2", score="gate"), (1, 1, 2, 3, 3)),
    ):
        strong(layer)
        names = [name for name, _ in layer.named_parameters()]

        def call(x: Tensor, *values: Tensor, layer=layer, names=names) -> Tensor:
            return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))

        inputs = [torch.randn(shape, requires_grad=True), *layer.parameters()]
        assert torch.autograd.gradcheck(call, inputs)


def test_parameters() -> None:
    assert sum(p.numel() for p in nn.GroupGate2d(10, "p4").parameters()) == 2 * (10**2 // 2) * 4 + 2 * 4 * 49
    assert sum(p.numel() for p in nn.LiftingGate2d(1, "p4").parameters()) == 2 + 2 * 49
    gated = nn.SliceCoAttentiveConv2d(10, 10, 3, "p4", score="gate").attention
    assert sum(p.numel() for p in gated.parameters()) == 2 * 10 * (4**2 // 2) * 4 + 2 * 4 * 49


def test_masks_are_open_where_a_gate_is_closed_and_within_0_and_1() -> None:
    x = torch.randn(2, 4, 4, 6, 6)
    masks = ca.attention_masks(torch.nn.Sequential(strong(nn.GroupGate2d(4, "p4"))), x)
    assert masks["0"].shape == x.shape
    assert 0 <= float(masks["0"].min()) < float(masks["0"].max()) <= 1


def test_wrong_arguments_are_answered() -> None:
    for make in (nn.GroupGate2d, nn.LiftingGate2d):
        with pytest.raises(ValueError, match=f"{make.__name__} expects an odd kernel_size.*got 4"):
            make(3, "p4", kernel_size=4)
        with pytest.raises(ValueError, match=f"{make.__name__} expects reduction to be a whole number"):
            make(3, "p4", reduction=0)
    with pytest.raises(ValueError, match="GroupGate2d expects groups that divide its 3 channels, got 2"):
        nn.GroupGate2d(3, "p4", groups=2)
    with pytest.raises(ValueError, match="SliceGate2d expects a multiple of 2 slices, got 3 channels"):
        nn.SliceGate2d(3, "p4", slices=2)
    with pytest.raises(ValueError, match=r"LiftingGate2d expects an image \(batch, channels=3"):
        nn.LiftingGate2d(3, "p4")(torch.randn(1, 3, 4, 5, 5))
    with pytest.raises(ValueError, match=r"GroupGate2d has torch.float64 parameters and got a torch.float32 input"):
        nn.GroupGate2d(3, "p4")(torch.randn(1, 3, 4, 5, 5).float())
    with pytest.raises(ValueError, match="expects score to be one of 'co-attention', 'gate', got 'gates'"):
        nn.SliceCoAttentiveConv2d(2, 2, 3, "p4", score="gates")
    with pytest.raises(ValueError, match="Q8"):
        nn.GroupGate2d(3, quaternions())


@pytest.mark.parametrize("filters", ["free", "steerable"])
@pytest.mark.parametrize("name", ["C8", "D8"])
def test_gated_slices_stay_exact_on_exact_subgroups(name: str, filters: str) -> None:
    G = ca.get_group(name)
    conv = strong(nn.SliceCoAttentiveConv2d(2, 2, 3, G, filters=filters, score="gate"))
    errors = ca.equivariance_error(conv, torch.randn(1, 2, G.order, 6, 6), G)
    assert max(errors[g] for g in G.exact_elements) <= 1e-12
