"""Averages over turned copies: the formula, what is invariant, and exports."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import coattend as ca
from coattend.data.augmentation import rotate_batch
from coattend.export import export_onnx, export_pt2, freeze
from coattend.models.classifier import load_trained
from coattend.models.pretrained import pretrained_file


def images(count: int = 3) -> torch.Tensor:
    return torch.randn(count, 1, 28, 28, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def network(name: str) -> nn.Module:
    torch.manual_seed(1)
    return ca.create_model(name).double().eval()


@pytest.mark.parametrize(
    ("name", "turns", "degrees"),
    [
        ("p4cnn:width=2", 4, (0, 22.5, 45, 67.5)),
        ("p4cnn:width=2,group=D4", 3, (0, 30, 60)),
        ("p4cnn:width=1,group=C8", 2, (0, 45)),
        ("a_dren:width=2,attention=output", 2, (0, 45)),  # clockwise
        ("p4cnn:width=2,group=C2", 4, (0, 90, 180, 270)),  # half turns only
        ("p4cnn:width=2,group=C6", 2, (0, 180)),
        ("z2cnn:width=3", 5, (0, 72, 144, 216, 288)),
        ("p4cnn:width=2", 1, (0,)),
    ],
)
def test_the_mean_of_log_probabilities_of_copies(name: str, turns: int, degrees: tuple[float, ...]) -> None:
    model, x = network(name), images()
    assert ca.turned(model, turns).copies.degrees == degrees
    expected = torch.zeros(len(x), 10, dtype=torch.float64)
    for image in range(len(x)):
        for angle in degrees:
            copy = rotate_batch(x[image : image + 1], torch.tensor([math.radians(angle)], dtype=torch.float64))
            logits = model(copy)[0]
            for c in range(10):
                expected[image, c] += (logits[c] - logits.exp().sum().log()) / turns
    found = ca.turned(model, turns)(x)
    assert (found - expected).abs().max() < 1e-9


@pytest.mark.parametrize("name", ["p4cnn:width=2", "z2cnn:width=3", "p4cnn:width=2,group=C2"])
def test_quarter_turns_of_the_image_change_nothing(name: str) -> None:
    model, x = ca.turned(network(name), 4), images()
    assert max(ca.equivariance_error(model, x, "p4").values()) < 1e-12
    if name != "p4cnn:width=2":  # copies within 90 degrees are no orbit of quarter turns
        within = ca.turned(network(name), 4, within=90)
        assert max(ca.equivariance_error(within, x, "p4").values()) > 1e-3


def test_copies_are_not_rounded_under_autocast() -> None:
    copies = ca.turned(network("p4cnn:width=2"), 4).copies
    x = images().float()
    plain = copies(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(copies(x), plain)
    assert (copies(x.bfloat16()).float() - plain).abs().max() < 0.05  # one rounding in, one out


def test_it_is_exported_with_its_certificate(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = ca.turned(load_trained(pretrained_file("p4cnn", "rotated-mnist")).eval(), 2)
    pixels = torch.randint(256, (3, 1, 28, 28), generator=torch.Generator().manual_seed(0)).float()
    with torch.no_grad():
        expected = model(pixels)
    certificate = export_onnx(model, tmp_path / "net.onnx")
    assert certificate.parity < 1e-3
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    assert session.get_modelmeta().custom_metadata_map["coattend.turned"] == "[0.0, 45.0]"
    (found,) = session.run(None, {"images": pixels.numpy()})
    assert (torch.from_numpy(found) - expected).abs().max() < 1e-3
    assert export_pt2(model, tmp_path / "net.pt2").parity < 1e-3
    loaded = torch.export.load(tmp_path / "net.pt2").module()
    assert (loaded(pixels) - expected).abs().max() < 1e-3
    program = torch.export.export(model, (pixels,))
    assert (program.module()(pixels) - expected).abs().max() < 1e-3


def test_wrong_arguments_are_named() -> None:
    model = network("p4cnn:width=2")
    with pytest.raises(ValueError, match="expects turns to be"):
        ca.turned(model, 0)
    with pytest.raises(ValueError, match="within must be a number of degrees above 0 and up to 360, got 400"):
        ca.turned(model, 4, within=400)
    with pytest.raises(ValueError, match=r"turned expects a network, an nn\.Module, got str"):
        ca.turned("p4cnn")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="freeze needs the shape of the images for TurnedCopies"):
        freeze(ca.turned(model))
