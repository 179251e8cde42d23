"""Restricted networks freeze and export like all others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import coattend as ca
from coattend.export import check_certificate, export_onnx, freeze
from coattend.nn import GroupConv2d
from coattend.nn.observe import estimate_norm_statistics

NETWORKS = ["p4cnn:width=16,relative=0-1,head=max", "a_p4cnn:width=4,relative=0-1", "p4m_allcnn:width=4,relative=0-2-5"]


@pytest.fixture(autouse=True)
def _float32() -> None:
    torch.set_default_dtype(torch.float32)


def settled(name: str) -> ca.models.EquivariantNetwork:
    torch.manual_seed(0)
    network = ca.create_model(name)
    size = 28 if network.in_channels == 1 else 32
    estimate_norm_statistics(network, [torch.randn(8, network.in_channels, size, size)])
    return network.eval()


@pytest.mark.parametrize("name", [NETWORKS[0], *(pytest.param(n, marks=pytest.mark.slow) for n in NETWORKS[1:])])
def test_frozen_and_onnx_give_the_same_logits(name: str, tmp_path: Path) -> None:
    network = settled(name)
    size = 28 if network.in_channels == 1 else 32
    x = torch.randn(3, network.in_channels, size, size)
    with torch.no_grad():
        expected = network(x)
        torch.testing.assert_close(freeze(network)(x), expected, rtol=1e-5, atol=1e-5)
    certificate = export_onnx(network, tmp_path / "small.onnx")
    assert certificate.parity < 1e-5
    checked = check_certificate(tmp_path / "small.onnx")
    assert checked is not None
    assert checked.agrees


def test_both_paths_are_among_the_exported() -> None:
    paths = {
        layer.in_blocks
        for name in NETWORKS
        for layer in ca.create_model(name).modules()
        if isinstance(layer, GroupConv2d) and layer.is_restricted
    }
    assert paths == {True, False}
