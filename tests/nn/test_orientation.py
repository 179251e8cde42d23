"""Fields of vectors and axes: they turn with the image, as fields, and every tool knows it."""

# ruff: noqa: E501 (one mistake, one line)

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import coattend as ca
from coattend import functional as F
from coattend.export import check_certificate, export_onnx, freeze
from coattend.groups import orientation_action
from tests.example_groups import EXACT, quaternions

KINDS = ("vector", "axis")


def turned_numbers(kind: str, angle: float, matrix: np.ndarray) -> np.ndarray:
    """The pair of numbers of a direction, after a matrix has moved the direction itself."""
    direction = matrix @ np.array([np.cos(angle), np.sin(angle)])
    moved = np.arctan2(direction[1], direction[0])
    times = 1 if kind == "vector" else 2
    return np.array([np.cos(times * moved), np.sin(times * moved)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*EXACT, "C8", "D6", "C4 clockwise"])
def test_the_action_is_that_on_directions_and_a_homomorphism(name: str, kind: str) -> None:
    G = ca.get_group(name)
    rho = orientation_action(G, kind)
    for g in G.elements:
        for angle in (0.3, 1.1, -2.0):
            times = 1 if kind == "vector" else 2
            numbers = np.array([np.cos(times * angle), np.sin(times * angle)])
            np.testing.assert_allclose(rho[g] @ numbers, turned_numbers(kind, angle, G.planar[g]), atol=1e-14)
        for h in G.elements:
            np.testing.assert_allclose(rho[g] @ rho[h], rho[G.product[g, h]], atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*EXACT, "C8", "D8"])
def test_fields_turn_as_fields(name: str, kind: str) -> None:
    """v'(u) = rho(g) v(g^-1 u), the definition, without the tools of the library."""
    G = ca.get_group(name)
    layer = ca.nn.OrientationField(3, G, fields=2, kind=kind)
    x = torch.randn(2, 3, G.order, 5, 7)
    v = layer(x)
    assert v.shape == (2, 4, 5, 7)
    rho = torch.tensor(orientation_action(G, kind))
    for g in G.exact_elements:
        moved = layer(ca.groups.transform_map(x, G, g))
        expected = torch.einsum("ab,nfbhw->nfahw", rho[g], v.unflatten(1, (2, 2))).flatten(1, 2)
        torch.testing.assert_close(moved, ca.groups.transform_image(expected, G, g), rtol=1e-12, atol=1e-12)
    ca.assert_equivariant(layer, x, G) if G.is_exact else None


def test_every_direction_can_be_expressed() -> None:
    """Two numbers per channel: with one, quarter turns would leave axes at 45 degrees out."""
    layer = ca.nn.OrientationField(1, "p4", kind="axis")
    x = torch.zeros(1, 1, 4, 1, 1)
    x[0, 0, 0] = 1
    layer.weight.data = torch.tensor([[[0.0, 1.0]]])
    assert math.isclose(F.orientation_angle(layer(x)).item(), math.pi / 4)
    assert math.isclose(F.orientation_angle(layer(ca.groups.transform_map(x, "p4", 1))).item(), -math.pi / 4)


def test_equals_the_formula() -> None:
    G = ca.dihedral(4)
    x, weight = torch.randn(1, 2, 8, 3, 3), torch.randn(1, 2, 2)
    expected = sum(
        torch.einsum("ab,b,hw->ahw", torch.tensor(orientation_action(G, "vector")[g]), weight[0, c], x[0, c, g])
        for c in range(2)
        for g in G.elements
    )
    torch.testing.assert_close(F.orientation_field(x, weight, G, "vector")[0], expected)


class Fields(nn.Module):
    """Lifting, a nonlinearity, and a field; with ``constant`` a direction that does not turn is added."""

    def __init__(self, kind: str = "axis", constant: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            ca.nn.LiftingConv2d(1, 4, 3, "p4m", padding=1), nn.ReLU(), ca.nn.OrientationField(4, "p4m", kind=kind)
        )
        self.constant = constant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) + self.constant


@pytest.mark.parametrize("kind", KINDS)
def test_networks_are_measured_as_fields(kind: str) -> None:
    x = torch.randn(2, 1, 8, 8)
    model = Fields(kind)
    assert max(ca.equivariance_error(model, x, "p4m").values()) < 1e-12
    other = "axis" if kind == "vector" else "vector"
    for layout in ("image", other):
        assert max(ca.equivariance_error(model, x, "p4m", output_layout=layout).values()) > 0.1
    assert ca.is_exact(model, 8)
    assert ca.diagnose(model, x, "p4m").is_equivariant


def test_a_constant_direction_is_found() -> None:
    model = Fields("vector", constant=0.5)
    assert not ca.is_exact(model, 8)
    assert not ca.diagnose(model, torch.randn(1, 1, 8, 8), "p4m").is_equivariant


def test_two_channels_without_such_a_layer_are_an_image() -> None:
    model = nn.Sequential(ca.nn.LiftingConv2d(1, 2, 3, "p4"), ca.nn.GroupPool("p4"))
    assert max(ca.equivariance_error(model, torch.randn(1, 1, 8, 8), "p4").values()) < 1e-12


def test_freezes_and_exports_with_a_certificate_of_the_field(tmp_path: Path) -> None:
    model = Fields().eval()
    x = torch.randn(2, 1, 9, 9)
    torch.testing.assert_close(freeze(model)(x), model(x), rtol=1e-12, atol=1e-12)
    torch.set_default_dtype(torch.float32)
    export_onnx(Fields().eval(), tmp_path / "model.onnx", size=8)
    check = check_certificate(tmp_path / "model.onnx")
    assert check.agrees
    assert check.certificate.output == "axis"
    assert max(check.certificate.equivariance.values()) < 1e-5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ca.nn.OrientationField(3, "p4", kind="angle"), "one of vector, axis, got 'angle'"),
        (lambda: ca.nn.OrientationField(3, quaternions()), "does not act on the plane"),
        (lambda: ca.nn.OrientationField(0, "p4"), "channels to be a whole number"),
        (lambda: ca.nn.OrientationField(3, "p4")(torch.zeros(1, 2, 4, 3, 3)), "channels=3"),
        (lambda: F.orientation_angle(torch.zeros(1, 3, 2, 2)), "two numbers per field"),
        (lambda: F.orientation_field(torch.zeros(1, 2, 4, 3, 3), torch.zeros(1, 3, 2), ca.cyclic(4)), "3 channels and 4 poses"),
        (lambda: ca.equivariance_error(nn.Conv2d(1, 3, 1), torch.randn(1, 1, 4, 4), "p4", output_layout="axis"), "cannot be laid out as 'axis'"),
    ],
)  # fmt: skip
def test_wrong_calls(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
