from __future__ import annotations

from pathlib import Path

import pytest
import torch

import coattend as ca
from coattend.export import export_onnx
from coattend.nn.observe import estimate_norm_statistics


@pytest.fixture(scope="session")
def network() -> ca.models.EquivariantNetwork:
    torch.manual_seed(1)
    model = ca.create_model("a_p4cnn:width=2").float()
    estimate_norm_statistics(model, [torch.randn(8, 1, 28, 28, dtype=torch.float32)])
    return model.eval()


@pytest.fixture(scope="session")
def onnx_file(network: ca.models.EquivariantNetwork, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    export_onnx(network, path, masks=True, responses=True, metadata={"note": "kept"})
    return path
