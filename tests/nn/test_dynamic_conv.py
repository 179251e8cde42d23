"""DynamicGroupConv2d: its formula, equivariance for every element, and what breaks it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import coattend as ca
from coattend._timing import saved_bytes
from coattend.functional import dynamic_group_conv2d
from coattend.groups import transform_map

nn = ca.nn


def layer(group: str, **options: object) -> nn.DynamicGroupConv2d:
    made = nn.DynamicGroupConv2d(4, 6, 5, group, slices=2, hidden=3, **options)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    return made


def example(conv: nn.DynamicGroupConv2d, size: int = 7) -> Tensor:
    return torch.randn(2, 4, conv.group.order, size, size)


class NormPerPose(torch.nn.Module):
    """The norm of the published code: statistics per channel, a scale and a shift per channel and pose."""

    def __init__(self, channels: int, poses: int) -> None:
        super().__init__()
        self.norm = torch.nn.GroupNorm(channels, channels * poses)
        torch.nn.init.normal_(self.norm.weight, 1, 0.3)
        torch.nn.init.normal_(self.norm.bias, 0, 0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.flatten(1, 2)).unflatten(1, x.shape[1:3])


@pytest.mark.parametrize("generated", [True, False])
@pytest.mark.parametrize("filters", ["free", "steerable"])
@pytest.mark.parametrize("name", ["C4", "D4", "C8", "C4 clockwise"])
def test_every_exact_element_commutes(name: str, filters: str, generated: bool) -> None:
    conv = layer(name, filters=filters, generated=generated)
    errors = ca.equivariance_error(conv, example(conv), name)
    assert len(conv.group.exact_elements) >= 4
    assert max(errors[g] for g in conv.group.exact_elements) <= 1e-12


@pytest.mark.parametrize("name", ["C4", "D4"])
def test_a_norm_with_parameters_per_pose_breaks_it(name: str) -> None:
    conv = layer(name)
    conv.norm = NormPerPose(3, conv.group.order)
    errors = ca.equivariance_error(conv, example(conv), name)
    assert min(errors[g] for g in range(1, conv.group.order)) > 1e-2


def test_filters_that_do_not_turn_break_it() -> None:
    conv = layer("C4")
    conv.turns = conv.turns[:1].expand(4, -1)
    errors = ca.equivariance_error(conv, example(conv), "C4")
    assert min(errors[g] for g in (1, 2, 3)) > 1e-2


def test_steerable_filters_approximate_the_other_elements() -> None:
    """Coefficients of smooth functions are generated, so that an eighth of a turn is nearly exact on smooth maps."""
    torch.manual_seed(3)
    errors = {}
    for filters in ("steerable", "bilinear"):
        conv = nn.DynamicGroupConv2d(4, 6, 5, "C8", slices=2, hidden=3, filters=filters)
        errors[filters] = max(ca.equivariance_error(conv, torch.randn(1, 4, 8, 33, 33), "C8").values())
    assert errors["steerable"] < 0.1 < errors["bilinear"]


def test_the_layer_is_its_formula() -> None:
    conv = layer("D4")
    x = example(conv)
    z = conv.norm(conv.context(x)).relu()
    expected = dynamic_group_conv2d(conv.value(x), z, conv.weight, conv.bias, conv.group)
    torch.testing.assert_close(conv(x), expected, rtol=1e-12, atol=1e-12)


def test_a_norm_that_is_observed_is_called() -> None:
    conv = layer("C4")
    x, seen = example(conv), []
    fused = conv(x)
    handle = conv.norm.register_forward_hook(lambda *call: seen.append(call[2].shape))
    torch.testing.assert_close(conv(x), fused, rtol=1e-12, atol=1e-12)
    handle.remove()
    assert seen == [(2, 3, 4, 7, 7)]
    assert torch.equal(conv(x), fused)


@pytest.mark.parametrize("name", ["C4", "D4"])
def test_generated_filters_turn_with_the_map(name: str) -> None:
    conv = layer(name)
    group, x = conv.group, example(conv)
    kappa = conv.filters(x).flatten(1, 3)  # b (s k k) g h w: taps are in the frame of their pose's map
    for g in group.elements:
        moved = conv.filters(transform_map(x, group, g)).flatten(1, 3)
        taps = transform_map(kappa, group, g).unflatten(1, (2, 5, 5)).permute(0, 1, 4, 5, 6, 2, 3)
        expected = ca.groups.transform_image(taps.flatten(0, 3).unsqueeze(1), group, g).reshape(taps.shape)
        actual = moved.unflatten(1, (2, 5, 5)).permute(0, 1, 4, 5, 6, 2, 3)
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_constant_filters_are_a_depthwise_convolution() -> None:
    conv = layer("C4", generated=False)
    x = example(conv)
    v = conv.value(x)
    for g in range(4):
        turned = torch.rot90(conv.weight, g, (-2, -1)).repeat_interleave(3, 0)  # one filter per channel
        expected = torch.nn.functional.conv2d(v[:, :, g], turned, padding=2, groups=6)
        torch.testing.assert_close(conv(x)[:, :, g], expected, rtol=1e-12, atol=1e-12)
    assert dict(conv.named_parameters()).keys() == {"value.weight", "weight"}


@pytest.mark.parametrize("filters", ["free", "steerable"])
@pytest.mark.parametrize("generated", [True, False])
def test_new_layers_keep_the_size_of_maps(filters: str, generated: bool) -> None:
    conv = nn.DynamicGroupConv2d(32, 32, 5, "C4", slices=4, filters=filters, generated=generated)
    with torch.no_grad():
        y = conv(torch.randn(4, 32, 4, 16, 16))[..., 2:-2, 2:-2]
    assert 0.6 < y.std() < 1.6


@pytest.mark.parametrize("generated", [True, False])
def test_bfloat16(generated: bool) -> None:
    torch.set_default_dtype(torch.float32)
    conv = nn.DynamicGroupConv2d(4, 6, 5, "C4", slices=2, generated=generated)
    x = torch.randn(2, 4, 4, 7, 7)
    with torch.no_grad():
        exact = conv(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = conv(x)
        narrow = conv.bfloat16()(x.bfloat16())
    assert cast.dtype == narrow.dtype == torch.bfloat16
    for y in (cast, narrow):
        assert (y.float() - exact).norm() / exact.norm() < 0.02


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="odd kernel_size"):
        nn.DynamicGroupConv2d(4, 4, 4, "C4")
    with pytest.raises(ValueError, match="slices=3 of equal size"):
        nn.DynamicGroupConv2d(4, 4, 3, "C4", slices=3)
    with pytest.raises(ValueError, match="hidden"):
        nn.DynamicGroupConv2d(4, 4, 3, "C4", hidden=0)


def test_no_copies_of_the_map_for_each_tap_are_saved() -> None:
    conv = nn.DynamicGroupConv2d(8, 8, 5, "p4", slices=2, hidden=4)
    x = torch.randn(2, 8, 4, 12, 12)
    assert saved_bytes(conv, x) < 3 * x.untyped_storage().nbytes()
