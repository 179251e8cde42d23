"""Trained networks are exported with their preprocessing: the files take pixels and say so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import safetensors
import safetensors.torch
import torch
from torch import Tensor

import coattend as ca
from coattend.export import (
    Certificate,
    check_certificate,
    export_file,
    export_frozen,
    export_onnx,
    export_pt2,
)
from coattend.models.classifier import Classifier
from tests.export.conftest import trained
from tests.export.test_freeze import Gate

ort = pytest.importorskip("onnxruntime")


def logits_of(file: Path, pixels: Tensor) -> Tensor:
    session = ort.InferenceSession(file, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(["logits"], {"images": pixels.numpy().astype(np.float32)})[0])


def test_onnx_takes_pixels_and_says_so(classifier: Classifier, digits: Tensor, tmp_path: Path) -> None:
    certificate = export_onnx(classifier, tmp_path / "m.onnx", masks=True)
    proto = onnx.load(tmp_path / "m.onnx")
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    assert metadata["coattend.input"] == "pixels"
    assert metadata["coattend.input_range"] == "0-255"
    assert json.loads(metadata["coattend.image_shape"]) == [1, 28, 28]
    assert json.loads(metadata["coattend.classes"]) == list("0123456789")
    assert metadata["coattend.provenance"] == "somewhere"
    logits = logits_of(tmp_path / "m.onnx", digits)
    with torch.no_grad():
        torch.testing.assert_close(logits, classifier(digits), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(logits, logits_of(tmp_path / "m.onnx", digits / 255), atol=0.1)
    masks = ca.attention_masks(classifier.network, classifier.preprocessing(digits))
    assert {output.name for output in proto.graph.output[1:]} == {f"mask:{layer}" for layer in masks}
    types = {t.data_type for t in proto.graph.initializer} | {
        v.type.tensor_type.elem_type for v in proto.graph.value_info
    }
    assert onnx.TensorProto.DOUBLE not in types
    assert (certificate.input, certificate.image_shape) == ("pixels", (1, 28, 28))
    assert max(certificate.equivariance.values()) < 1e-5
    checked = check_certificate(tmp_path / "m.onnx")
    assert checked is not None
    assert [claim.agrees for claim in checked.claims] == [True] * 6


def test_torch_files_take_pixels(classifier: Classifier, digits: Tensor, tmp_path: Path) -> None:
    export_frozen(classifier, tmp_path / "m.pt")
    frozen = torch.load(tmp_path / "m.pt", weights_only=False)
    assert frozen.metadata["coattend.input_range"] == "0-255"
    with torch.no_grad():
        expected = classifier(digits)
        torch.testing.assert_close(frozen(digits), expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(frozen(digits.float()), expected, rtol=1e-5, atol=1e-5)
        with pytest.raises(AssertionError, match=r"takes images \(batch, 1, 28, 28\)"):
            frozen(torch.zeros(1, 1, 30, 30))
    export_pt2(classifier, tmp_path / "m.pt2")
    extra = {"metadata.json": ""}
    program = torch.export.load(str(tmp_path / "m.pt2"), extra_files=extra).module()
    assert json.loads(extra["metadata.json"])["coattend.input"] == "pixels"
    with torch.no_grad():
        torch.testing.assert_close(program(digits.float()), expected, rtol=1e-5, atol=1e-5)


def test_model_files_are_certified_with_their_preprocessing(classifier: Classifier, tmp_path: Path) -> None:
    classifier.save(tmp_path / "plain.safetensors")
    certificate = export_file(tmp_path / "plain.safetensors", tmp_path / "certified.safetensors")
    assert isinstance(certificate, Certificate)
    assert certificate.input == "pixels"
    checked = check_certificate(tmp_path / "certified.safetensors")
    assert checked is not None
    assert len(checked.claims) == 6
    assert checked.agrees
    with safetensors.safe_open(tmp_path / "certified.safetensors", framework="pt") as file:
        header, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    header.pop("digest")
    tensors["extra.0.scalar.mean"] += 0.01
    safetensors.torch.save_file(tensors, tmp_path / "changed.safetensors", header)
    changed = check_certificate(tmp_path / "changed.safetensors")
    assert changed is not None
    assert not changed.agrees


def test_a_network_trained_on_other_sizes_is_exported_at_them(tmp_path: Path) -> None:
    images = torch.randint(256, (8, 3, 64, 64), dtype=torch.uint8)
    classifier = trained("p4_allcnn:width=2", images, classes="ab")
    classifier.save(tmp_path / "m.safetensors")
    export_file(tmp_path / "m.safetensors", tmp_path / "m.onnx")
    with torch.no_grad():
        torch.testing.assert_close(logits_of(tmp_path / "m.onnx", images), classifier(images), rtol=1e-4, atol=1e-4)
    small = export_file(tmp_path / "m.safetensors", tmp_path / "small.pt", size=48)
    assert isinstance(small, Certificate)
    assert small.image_shape == (3, 48, 48)


def test_preprocessing_that_depends_on_pixels(digits: Tensor, tmp_path: Path) -> None:
    """Whitening needs float64, is certified as not equivariant, and has one size."""
    classifier = trained("p4cnn:width=2", digits, ("gcn", "zca"))
    certificate = export_onnx(classifier, tmp_path / "m.onnx")
    assert certificate.parity < 1e-4
    assert certificate.equivariance["1"] > 1e-3
    with torch.no_grad():
        expected = classifier(digits)
    torch.testing.assert_close(logits_of(tmp_path / "m.onnx", digits), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match=r"cannot take images of 32 x 32 pixels \(this preprocessing was fitted on"):
        export_onnx(classifier, tmp_path / "n.onnx", size=32)


@pytest.mark.slow
def test_attention_of_another_form_is_exported_with_its_masks(digits: Tensor, tmp_path: Path) -> None:
    classifier = trained("p4cnn:width=2", digits, attention=Gate)
    certificate = export_onnx(classifier, tmp_path / "m.onnx", masks=True)
    assert certificate.parity < 1e-4
    assert max(certificate.equivariance.values()) < 1e-5
    session = ort.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    expected = ca.attention_masks(classifier.network, classifier.preprocessing(digits[:3]))
    assert len(expected) == 7
    names = [f"mask:{layer}" for layer in expected]
    masks = session.run(names, {"images": digits[:3].float().numpy()})
    for mask, wanted in zip(masks, expected.values(), strict=True):
        torch.testing.assert_close(torch.from_numpy(mask), wanted, rtol=1e-4, atol=1e-5)
