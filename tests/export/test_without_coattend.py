"""Exported files run where this library cannot be imported, and return what the original returned."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from experiments.export_parity import PROGRAM, differences, write_cases

import coattend as ca
from coattend.export import export_frozen, export_onnx, export_pt2
from coattend.export.input import input_of
from coattend.models.classifier import Classifier
from coattend.nn.observe import estimate_norm_statistics
from tests.export.test_freeze import NETWORKS, small

# One without attention, one with each kind of it; experiments/export_parity.py does all 21 at full width.
AS_ONNX = ("p4cnn", "a_p4m_resnet44", "a_r_resnet20_x4", "trained")
AS_PT2 = ("dren_maxpool",)


def test_the_program_cannot_import_coattend(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.read_text() + "    import coattend\n")
    command = [sys.executable, str(tmp_path / "program.py")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "No module named 'coattend'" in run.stderr


def settled(name: str) -> torch.nn.Module:
    torch.manual_seed(3)
    model = ca.create_model(small(name)).float()
    size = ca.model_entry(name).image_size
    estimate_norm_statistics(model, [torch.randn(8, model.in_channels, size, size, dtype=torch.float32)])
    return model.eval()


@pytest.mark.slow
def test_networks_return_the_same_without_coattend(tmp_path: Path, classifier: Classifier) -> None:
    models = {**{name: settled(name) for name in NETWORKS}, "trained": classifier}
    largest = {}
    for name, model in models.items():
        folder = tmp_path / name
        folder.mkdir()
        export_frozen(model, folder / "model.pt")
        if name in AS_ONNX:
            export_onnx(model, folder / "model.onnx")
        if name in AS_PT2:
            export_pt2(model, folder / "model.pt2")
        channels, size, _ = input_of(model).shape
        largest[name] = write_cases(model, channels, size, folder)
    measured = differences(*(tmp_path / name for name in models))
    for name, of_files in zip(models, measured, strict=True):
        assert len(of_files) == 4 * (1 + (name in AS_ONNX) + (name in AS_PT2))
        for case, difference in of_files.items():
            assert difference <= 1e-5 * max(1, largest[name]), (name, case)


def test_masks_and_responses_are_outputs(onnx_file: Path, network: ca.models.EquivariantNetwork) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(onnx_file, providers=["CPUExecutionProvider"])
    x = torch.randn(3, 1, 28, 28, dtype=torch.float32)
    outputs = dict(zip([o.name for o in session.get_outputs()], session.run(None, {"images": x.numpy()}), strict=True))
    expected = ca.attention_masks(network, x)
    assert {name for name in outputs if name.startswith("mask:")} == {f"mask:{layer}" for layer in expected}
    for layer, mask in expected.items():
        torch.testing.assert_close(torch.from_numpy(outputs[f"mask:{layer}"]), mask, rtol=1e-4, atol=1e-4)
        response = torch.from_numpy(outputs[f"response:{layer}"])
        own_mask = network.get_submodule(layer).mask(response)
        torch.testing.assert_close(own_mask, mask, rtol=1e-4, atol=1e-4)
    lifted = network.stages[0].layer1.conv(x)
    torch.testing.assert_close(torch.from_numpy(outputs["response:stages.0.layer1.conv"]), lifted, rtol=1e-4, atol=1e-5)
