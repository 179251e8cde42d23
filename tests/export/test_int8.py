"""int8: close to the original, smaller, and honest about what it cost."""

from __future__ import annotations

from pathlib import Path

import onnx
import torch

import coattend as ca
from coattend.data import load_data
from coattend.export import check_certificate, export_int8
from coattend.nn.observe import estimate_norm_statistics


def test_int8_keeps_the_answers_and_reports_its_errors(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = ca.create_model("p4cnn:attention=output,width=4").float()
    images = load_data("mini").train.images[:300].float() / 80 - 0.4
    estimate_norm_statistics(model, [images])
    model.eval()
    with torch.no_grad():
        answers = model(images[200:]).argmax(1)
    found = export_int8(
        model, tmp_path / "int8.onnx", calibration=images[:200], test_images=images[200:], test_labels=answers
    )
    assert found.error_before == 0
    assert found.error_after < 20
    # Turned filters have the same largest weight, so they are rounded alike: int8 costs accuracy, not equivariance.
    assert max(found.equivariance_before, found.equivariance_after) < 1e-5
    assert found.certificate.parity > 1e-3
    assert found.bytes_after < found.bytes_before
    proto = onnx.load(tmp_path / "int8.onnx")
    kinds = {t.data_type for t in proto.graph.initializer if t.name.endswith("conv.weight_quantized")}
    assert kinds == {onnx.TensorProto.INT8}
    assert any(t.name.endswith("attention.logits.weight") for t in proto.graph.initializer)  # left in float32
    checked = check_certificate(tmp_path / "int8.onnx")
    assert checked is not None
    assert checked.agrees
