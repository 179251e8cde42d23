"""int8: close to the original, smaller, and honest about what it cost."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
import torch

from coattend.data import load_data
from coattend.export import check_certificate, export_file, export_int8
from coattend.export.int8 import Quantization
from tests.export.conftest import trained


def test_int8_keeps_the_answers_and_reports_its_errors(tmp_path: Path) -> None:
    images = load_data("mini").train.images[:300]
    model = trained("p4cnn:attention=output,width=4", images)
    with torch.no_grad():
        answers = model(images[200:]).argmax(1)
    quantization = export_int8(
        model, tmp_path / "int8.onnx", calibration=images[:200], test_images=images[200:], test_labels=answers
    )
    assert quantization.error_before == 0
    assert quantization.error_after < 20
    # Turned filters have the same largest weight, so they are rounded alike: int8 costs accuracy, not equivariance.
    assert max(quantization.equivariance_before, quantization.equivariance_after) < 1e-5
    assert quantization.certificate.input == "pixels"
    assert quantization.certificate.parity > 1e-3
    assert quantization.bytes_after < quantization.bytes_before
    proto = onnx.load(tmp_path / "int8.onnx")
    (first,) = (node for node in proto.graph.node if "images" in node.input)
    assert first.op_type == "Div"  # preprocessing takes the pixels, not a quantization of them
    kinds = {t.data_type for t in proto.graph.initializer if t.name.endswith("conv.weight_quantized")}
    assert kinds == {onnx.TensorProto.INT8}
    assert any(t.name.endswith("attention.logits.weight") for t in proto.graph.initializer)  # left in float32
    checked = check_certificate(tmp_path / "int8.onnx")
    assert checked is not None
    assert checked.agrees


@pytest.mark.slow
def test_int8_is_calibrated_on_the_data_of_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_data("mini")
    model = trained("p4cnn:width=2", data.train.images[:32])
    model.metadata["recipe"] = json.dumps({"data": "mini"})
    model.save(tmp_path / "m.safetensors")
    monkeypatch.setattr("coattend.export.onnx.TEST", 30)
    quantization = export_file(tmp_path / "m.safetensors", tmp_path / "m.onnx", int8=True)
    assert isinstance(quantization, Quantization)
    assert quantization.images == 30
    assert "test error " in str(quantization)
    model.metadata.pop("recipe")
    model.save(tmp_path / "without.safetensors")
    with pytest.raises(ValueError, match="name a dataset with --data"):
        export_file(tmp_path / "without.safetensors", tmp_path / "n.onnx", int8=True)
