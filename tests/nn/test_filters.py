"""Groups with other angles: the exact subgroup stays exact, the rest is measured and documented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import coattend as ca
from experiments import filter_error

nn = ca.nn


@pytest.mark.parametrize("name", ["C8", "D8", "C6", "C3", "C16"])
@pytest.mark.parametrize("kernel_size", [3, 4, 5, 7])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_the_exact_subgroup_is_exact(name: str, kernel_size: int, interpolation: str) -> None:
    G = ca.get_group(name)
    options = {"padding": 1, "interpolation": interpolation}
    for layer in (
        nn.LiftingConv2d(2, 3, kernel_size, G, **options),
        nn.GroupConv2d(2, 3, kernel_size, G, **options),
        nn.ProjectionConv2d(2, 3, kernel_size, G, attention=True, **options),
        nn.SliceCoAttentiveConv2d(2, 3, kernel_size, G, **options),
    ):
        x = torch.randn(1, 2, 9, 9) if isinstance(layer, nn.LiftingConv2d) else torch.randn(1, 2, G.order, 9, 9)
        errors = ca.equivariance_error(layer, x, G)
        assert max(errors[g] for g in G.exact_elements) <= 1e-12
        inexact = [errors[g] for g in G.elements if g not in G.exact_elements]
        assert min(inexact) > 1e-3  # the rest is not exact, and says so


@pytest.mark.parametrize("name", filter_error.GROUPS)
def test_the_documented_errors_are_the_measured_ones(name: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "conventions.md").read_text()
    G = ca.get_group(name)
    for kernel_size in filter_error.KERNELS:
        row = re.search(rf"^\| {name} \| {kernel_size} \|(.*)\|$", text, re.MULTILINE)
        documented = [float(cell) for cell in re.split(r"[|/]", row.group(1))]
        measured = [
            filter_error.error(G, kernel_size, interpolation, on_group, smooth)
            for on_group in (False, True)
            for interpolation in filter_error.INTERPOLATIONS
            for smooth in (False, True)
        ]
        assert measured == pytest.approx(documented, abs=6e-4)


def test_bicubic_beats_bilinear_and_smooth_filters_beat_rough_ones() -> None:
    G = ca.cyclic(8)
    for kernel_size in (3, 5, 7):
        rough, smooth = (filter_error.error(G, kernel_size, "bicubic", True, s) for s in (False, True))
        assert smooth < rough
        assert rough < filter_error.error(G, kernel_size, "bilinear", True, False)


def test_float32_layers_keep_the_exact_subgroup_when_converted_to_float64() -> None:
    torch.set_default_dtype(torch.float32)
    G = ca.cyclic(8)
    layer = nn.GroupConv2d(2, 3, 5, G).double()
    errors = ca.equivariance_error(layer, torch.randn(1, 2, 8, 9, 9, dtype=torch.float64), G)
    assert max(errors[g] for g in G.exact_elements) <= 1e-12
