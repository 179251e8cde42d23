"""Projection, templates, sizes, and the tools that work on converted networks."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

import coattend as ca
from coattend.conversion.frames import TurnPoses, move_of
from coattend.export import check_certificate, export_onnx
from coattend.groups import transform_image
from tests.conversion.architectures import NARROW, resnet18
from tests.conversion.orbit_oracle import assert_orbit_mean, moved_back, with_statistics


@pytest.mark.parametrize("group", ["p4", "p4m", "C2", "D1", "D2"])
def test_moves_are_those_of_the_group(group: str) -> None:
    elements = ca.get_group(group)
    x = torch.randn(2, 3, 5, 5)
    for g in elements.elements:
        assert torch.equal(move_of(elements, g).apply(x, 2, 3), transform_image(x, elements, g))


def test_frames_are_turned_and_turned_back() -> None:
    group = ca.get_group("p4m")
    x = torch.randn(2 * 8, 3, 5, 5)
    own = TurnPoses(group, (2, 3), back=True)(x)
    for g in range(8):
        assert torch.equal(own[8 + g], moved_back(x[8 + g], g))
    assert torch.equal(TurnPoses(group, (2, 3), back=False)(own), x)
    with pytest.raises(ValueError, match="have to be square, got 5 x 6"):
        TurnPoses(group, (2, 3), back=True)(torch.randn(8, 3, 5, 6))


@pytest.mark.parametrize("name", ["resnet18", "unet"])
def test_symmetric_filters_turn_every_map(name: str) -> None:
    size = 32 if name == "unet" else 33
    x = torch.randn(2, 3, size, size)
    model = with_statistics(NARROW[name](), x)
    assert not ca.diagnose(model, x, "p4m").is_equivariant
    network = ca.equivariantize(model, "p4m", mode="project", size=size)
    ca.assert_equivariant(network, x, "p4m", tol=1e-10)
    assert sum(p.numel() for p in network.parameters()) == sum(p.numel() for p in model.parameters())
    assert all("% of its squared norm is left" in record.reason for record in network.records)
    with torch.no_grad():
        assert not torch.allclose(network(x), model(x))  # what filters knew of directions is lost


def test_projection_refuses_what_depends_on_directions() -> None:
    with pytest.raises(ca.ConversionError, match=r"flatten.*inflate"):
        ca.equivariantize(NARROW["vgg16"](), "p4", mode="project", size=32)


@pytest.mark.parametrize("match", ["params", "cost"])
def test_templates_have_the_size_of_the_plain_network(match: str) -> None:
    model = resnet18(16, 10)
    network = ca.equivariantize(model, "p4", mode="template", match=match, size=33)
    x = torch.randn(2, 3, 33, 33)
    assert network(x).shape == (2, 10)
    ca.assert_equivariant(network.eval(), x, "p4", tol=1e-10)
    parameters = sum(p.numel() for p in network.parameters()) / sum(p.numel() for p in model.parameters())
    widths = {m.out_channels for m in network.modules() if isinstance(m, ca.nn.GroupConv2d)}
    assert widths == ({8, 16, 32, 64} if match == "params" else {4, 8, 16, 32})
    assert 0.9 < parameters < 1.1 if match == "params" else 0.2 < parameters < 0.3


def test_templates_refuse_parameters_of_unknown_width() -> None:
    with pytest.raises(ca.ConversionError, match=r"features.0.1 \(LayerNorm2d\).*parameter weight"):
        ca.equivariantize(NARROW["convnext_tiny"](), "p4", mode="template", size=32)


def test_uneven_strides_are_refused_with_exact_sizes() -> None:
    model = NARROW["resnet18"]()
    with pytest.raises(
        ca.ConversionError, match="conv1: its windows of 7 with stride 2 .* sizes: 33 and 65"
    ) as refusal:
        ca.equivariantize(model, "p4", size=64)
    assert refusal.value.layer == "conv1"
    assert ca.is_exact(ca.equivariantize(model, "p4", size=65), 65)


def test_uneven_strides_in_their_own_frames() -> None:
    x = torch.randn(2, 3, 40, 40)
    model = with_statistics(NARROW["resnet18"](), x)
    network = ca.equivariantize(model, "p4m", size=40, strides="own-frame")
    assert {record.layer for record in network.in_own_frames} >= {"conv1", "maxpool"}
    assert_orbit_mean(model, network, x, "p4m", 1e-11)


def test_pooling_instead_of_strides() -> None:
    x = torch.randn(2, 3, 32, 32)
    model = with_statistics(NARROW["resnet18"](), x)
    network = ca.equivariantize(model, "p4m", size=32, strides="pool")
    assert network.in_own_frames == ()
    ca.assert_equivariant(network, x, "p4m", tol=1e-11)
    with pytest.raises(ca.ConversionError, match="0: its stride cannot be replaced by pooling"):
        ca.equivariantize(nn.Sequential(nn.Conv2d(3, 4, 3, 2)), "p4m", size=32, strides="pool")


def test_wrong_arguments() -> None:
    model = NARROW["resnet18"]()
    for arguments, message in (
        ({"group": "C8"}, "quarter turns and flips"),
        ({"group": "p4", "mode": "inflated"}, "mode to be one of 'inflate'"),
        ({"group": "p4", "strides": "none"}, "strides to be one of"),
        ({"group": "p4", "relative": (1, 2)}, "must hold 0"),
        ({"group": "p4", "example": torch.zeros(3, 3)}, "example must be images"),
    ):
        with pytest.raises(ValueError, match=message):
            ca.equivariantize(model, **arguments)
    with pytest.raises(ca.ConversionError, match=r"UNet: it cannot be run on images \(3, 3, 5, 5\)"):
        ca.equivariantize(NARROW["unet"](), "p4", size=5)
    with pytest.raises(ValueError, match="expects a network"):
        ca.equivariantize(torch.relu, "p4")


@pytest.mark.parametrize(
    "name", ["vgg16", *(pytest.param(name, marks=pytest.mark.slow) for name in ("resnet18", "unet", "convnext_tiny"))]
)
def test_converted_networks_freeze_and_export(name: str, tmp_path: Path) -> None:
    size = 33 if name == "resnet18" else 32
    model = NARROW[name]().float().eval()
    network = ca.equivariantize(model, "p4m", size=size, verify=False)
    x = torch.randn(2, 3, size, size, dtype=torch.float32)
    torch.testing.assert_close(ca.freeze(network)(x), network(x))
    certificate = export_onnx(network, tmp_path / "model.onnx", size=size)
    assert max(certificate.equivariance.values()) < 1e-5
    check = check_certificate(tmp_path / "model.onnx")
    assert check is not None
    assert check.agrees


def test_the_network_is_trained_and_copied_like_any_other() -> None:
    network = ca.equivariantize(NARROW["resnet18"]().train(), "p4", size=33)
    assert network.training
    x = torch.randn(2, 3, 33, 33)
    twin = copy.deepcopy(network)
    pickled = pickle.loads(pickle.dumps(network))
    twin.load_state_dict(network.state_dict())
    for other in (twin, pickled):
        torch.testing.assert_close(other.eval()(x), network.eval()(x))
