"""The transposed group convolution: the adjoint of the group convolution, exact at every size, and known to all tools."""

# ruff: noqa: E501 (one mistake, one line)

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import coattend as ca
from coattend import functional as F
from coattend.equivariance.geometry import safe_sizes
from coattend.export import check_certificate, export_onnx, freeze
from coattend.nn.observe import estimate_norm_statistics, multiply_adds
from tests import oracles
from tests.example_groups import EXACT

nn = ca.nn
GEOMETRIES: list[dict[str, Any]] = [
    {},
    {"stride": 2},
    {"stride": 2, "padding": 1},
    {"stride": 3, "padding": 1},
    {"padding": 1, "dilation": 2},
    {"stride": 2, "groups": 2},
    {"padding": "same", "bias": False},
]


def made(kind: type, *arguments: Any, **options: Any) -> Any:
    layer = kind(*arguments, **options)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


@pytest.mark.parametrize("filters", ["free", "steerable", "bicubic"])
@pytest.mark.parametrize("name", ["C1", "C4", "D4", "C8", "D3"])
def test_is_the_adjoint_of_the_group_convolution(name: str, filters: str) -> None:
    """<conv(y), x> = <y, transposed(x)>, also where the convolution leaves rows over: output_padding."""
    G = ca.get_group(name)
    for kernel_size, geometry in ((3, {}), (3, {"stride": 2, "padding": 1}), (4, {"stride": 2, "dilation": 2}),
                                  (2, {"stride": 2}), (3, {"stride": 3, "groups": 2, "padding": 1})):  # fmt: skip
        conv = made(nn.GroupConv2d, 4, 6, kernel_size, G, bias=False, filters=filters, **geometry)
        for size in (9, 10, 11):
            y = torch.randn(2, 4, G.order, size, size + 1)
            x = torch.randn_like(conv(y))
            left_over = [(s + 2 * conv.padding - conv.geometry.extent) % conv.stride for s in (size, size + 1)]
            if left_over[0] != left_over[1]:
                y = y[..., :-1]
                x, left_over = torch.randn_like(conv(y)), left_over[:1]
            transposed = nn.GroupConvTranspose2d(
                6, 4, kernel_size, G, bias=False, filters=filters, output_padding=left_over[0], **geometry
            )
            transposed.load_state_dict(conv.state_dict())
            result = transposed(x)
            assert result.shape == y.shape
            difference = (conv(y) * x).sum() - (y * result).sum()
            assert abs(difference.item()) <= 1e-12 * (conv(y).norm() * x.norm()).item()


def test_another_weight_is_not_the_adjoint() -> None:
    conv = made(nn.GroupConv2d, 2, 2, 3, "p4", bias=False)
    transposed = nn.GroupConvTranspose2d(2, 2, 3, "p4", bias=False)
    transposed.weight.data = conv.weight.data.transpose(0, 1).contiguous()
    y = torch.randn(1, 2, 4, 6, 6)
    x = torch.randn_like(conv(y))
    assert abs((conv(y) * x).sum() - (y * transposed(x)).sum()) > 1e-3 * conv(y).norm() * x.norm()


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("kernel_size", [1, 2, 3, 4])
def test_commutes_with_every_element_at_every_size(name: str, kernel_size: int) -> None:
    G = ca.get_group(name)
    for geometry in GEOMETRIES:
        if geometry.get("padding") == "same" and kernel_size % 2 == 0:
            continue
        layer = made(nn.GroupConvTranspose2d, 2, 4, kernel_size, G, **geometry)
        for size in ((6, 6), (5, 8)):
            ca.assert_equivariant(layer, torch.randn(2, 2, G.order, *size), G, tol=1e-12)


@pytest.mark.parametrize("filters", ["free", "steerable"])
def test_larger_groups_are_exact_in_their_exact_subgroup(filters: str) -> None:
    layer = made(nn.GroupConvTranspose2d, 2, 3, 4, "C8", stride=2, padding=1, filters=filters)
    errors = ca.equivariance_error(layer, torch.randn(1, 2, 8, 9, 9), "C8")
    assert max(errors[g] for g in layer.group.exact_elements) < 1e-12
    assert max(errors.values()) > 1e-3


@pytest.mark.parametrize("name", ["C4", "D4"])
@pytest.mark.parametrize(
    ("kernel_size", "geometry"),
    [(2, {"stride": 2}), (3, {"padding": 1}), (4, {"stride": 2, "padding": 1}),
     (3, {"stride": 2, "dilation": 2, "output_padding": 1})],
)  # fmt: skip
def test_equals_the_slow_loops(name: str, kernel_size: int, geometry: dict[str, int]) -> None:
    G = ca.get_group(name)
    layer = made(nn.GroupConvTranspose2d, 2, 3, kernel_size, G, **geometry)
    x = torch.randn(1, 2, G.order, 3, 4)
    arrays = x.numpy(), layer.weight.detach().numpy(), layer.bias.detach().numpy()
    expected = torch.tensor(oracles.group_conv_transpose(*arrays, G.product, G.inverse, G.planar, **geometry))
    torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(F.group_conv_transpose2d(x, layer.weight, layer.bias, G, **geometry), expected)


def test_relative_poses_are_slices_that_are_zero_elsewhere() -> None:
    x, weight = torch.randn(1, 2, 4, 5, 5), torch.randn(2, 3, 2, 2, 2)
    whole = torch.zeros(2, 3, 4, 2, 2)
    whole[:, :, [3, 1]] = weight
    expected = F.group_conv_transpose2d(x, whole, None, ca.cyclic(4), stride=2)
    actual = F.group_conv_transpose2d(x, weight, None, ca.cyclic(4), stride=2, relative=(3, 1))
    torch.testing.assert_close(actual, expected)
    layer = made(nn.GroupConvTranspose2d, 2, 3, 2, "p4", stride=2).restricted((0, 2))
    assert layer.weight.shape == (2, 3, 2, 2, 2)
    ca.assert_equivariant(layer, x, "p4")


def test_new_weights_keep_the_size_of_maps() -> None:
    layer = nn.GroupConvTranspose2d(32, 32, 4, "p4", stride=2, padding=1)
    assert abs(layer(torch.randn(4, 32, 4, 16, 16)).std().item() - 1) < 0.1


def test_output_padding_is_found_and_explained() -> None:
    layer = made(nn.GroupConvTranspose2d, 2, 2, 3, "p4", stride=2, padding=1, output_padding=1)
    assert max(ca.equivariance_error(layer, torch.randn(1, 2, 4, 6, 6), "p4").values()) > 0.1
    diagnosis = ca.diagnose(layer, torch.randn(1, 2, 4, 6, 6), "p4")
    assert diagnosis.fault.cause.name == "ASYMMETRIC"
    assert "output_padding=1 adds rows and columns on one side only" in diagnosis.fault.remedy


class UpAndDown(torch.nn.Module):
    """A strided convolution and the transposed one that undoes its reduction."""

    def __init__(self, attention: bool = True) -> None:
        super().__init__()
        self.lift = nn.LiftingConv2d(1, 4, 3, "p4m", padding=1)
        self.down = nn.SpatialMaxPool2d(2)
        self.up = torch.nn.Sequential(
            nn.GroupConvTranspose2d(4, 4, 2, "p4m", stride=2, groups=2),
            *([nn.CoAttention(4, "p4m")] if attention else []),
            nn.GroupBatchNorm2d(4),
            torch.nn.ReLU(),
        )
        self.pool = nn.GroupPool("p4m")

    def forward(self, x: Tensor) -> Tensor:
        lifted = self.lift(x)
        return self.pool(torch.cat([self.up(self.down(lifted)), lifted], 1))


def test_networks_with_it_are_exact_at_the_sizes_that_are_named() -> None:
    model = UpAndDown()
    assert ca.is_exact(model, 12)
    assert safe_sizes(model, torch.zeros(1, 1, 13, 13)) == [(12, 12), (14, 14)]


@pytest.mark.parametrize("attention", [False, True])
def test_freezes_with_the_norm_folded(attention: bool) -> None:
    model = UpAndDown(attention)
    estimate_norm_statistics(model, [torch.randn(4, 1, 8, 8)])
    torch.nn.init.normal_(model.up[-2].weight)
    frozen = freeze(model.eval())
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in frozen.modules())
    assert isinstance(frozen.get_submodule("up.0"), torch.nn.ConvTranspose2d)
    x = torch.randn(3, 1, 10, 12)
    torch.testing.assert_close(frozen(x), model(x), rtol=1e-11, atol=1e-11)


def test_onnx_file_has_a_certificate_that_holds(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    export_onnx(UpAndDown().eval(), tmp_path / "model.onnx", size=8)
    check = check_certificate(tmp_path / "model.onnx")
    assert all(claim.agrees for claim in check.claims)
    assert max(check.certificate.equivariance.values()) < 1e-5


def test_multiply_adds_are_those_of_the_convolution() -> None:
    forward = torch.nn.Sequential(nn.LiftingConv2d(1, 4, 1, "p4"), nn.GroupConv2d(4, 6, 2, "p4", stride=2))
    both = torch.nn.Sequential(*forward, nn.GroupConvTranspose2d(6, 4, 2, "p4", stride=2))
    costs = multiply_adds(both, (1, 8, 8))
    assert costs["1"] == costs["2"] == 4 * 6 * 4 * 4 * 4 * 16


MAP = torch.randn(1, 4, 4, 5, 5, dtype=torch.float64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.GroupConvTranspose2d(4, 4, 3, "p4", stride=2, output_padding=2), "output_padding below the stride or the dilation, 2 and 1, got 2"),
        (lambda: nn.GroupConvTranspose2d(4, 4, 3, "p4", output_padding=-1), "output_padding to be a whole number from 0"),
        (lambda: nn.GroupConvTranspose2d(4, 3, 3, "p4", groups=2), "must divide both in_channels=4 and out_channels=3"),
        (lambda: nn.GroupConvTranspose2d(4, 3, 1, "p4", padding=3)(MAP), "GroupConvTranspose2d removes padding=3 positions.*pass larger maps or less padding"),
        (lambda: nn.GroupConvTranspose2d(3, 3, 1, "p4")(MAP), "channels=3"),
        (lambda: nn.GroupConvTranspose2d(4, 3, 1, "p4m")(MAP), "group=8"),
        (lambda: F.group_conv_transpose2d(MAP, torch.zeros(3, 2, 4, 3, 3), None, ca.cyclic(4)), r"group_conv_transpose2d expects 3 channels.*\(in, out / groups"),
        (lambda: F.group_conv_transpose2d(MAP, torch.zeros(4, 2, 4, 3, 3), torch.zeros(4), ca.cyclic(4)), "one bias for each of 2 output channels, got 4"),
        (lambda: F.group_conv_transpose2d(MAP, torch.zeros(4, 2, 3, 3, 3), None, ca.cyclic(4)), "one slice for each of 4 relative poses, got 3"),
        (lambda: F.group_conv_transpose2d(MAP.float(), torch.zeros(4, 2, 4, 3, 3), None, ca.cyclic(4)), "dtype of the weight"),
        (lambda: F.group_conv_transpose2d(MAP, torch.zeros(4, 2, 4, 1, 1), None, ca.cyclic(4), padding=3), "removes padding=3"),
        (lambda: F.group_conv_transpose2d(MAP[0], torch.zeros(4, 2, 4, 1, 1), None, ca.cyclic(4)), "x to be a dense"),
    ],
)  # fmt: skip
def test_wrong_calls(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
