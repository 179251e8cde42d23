from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import coattend as ca
from coattend.data import load_data, make_preprocessing
from coattend.export import export_onnx
from coattend.models.classifier import Classifier
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


def trained(
    model: str, images: Tensor, steps: tuple[str, ...] = ("scalar",), classes: str = "0123456789", **options: object
) -> Classifier:
    """A classifier that has seen images, with norms that scale; its answers are arbitrary but not flat."""
    torch.manual_seed(2)
    preprocessing = make_preprocessing(steps, clip=3).fit(images)
    network = ca.create_model(model, num_classes=len(classes), in_channels=images.shape[1], **options).float()
    estimate_norm_statistics(network, [preprocessing(images)])
    return Classifier(network, preprocessing, tuple(classes), tuple(images.shape[1:]), "somewhere").eval()


@pytest.fixture(scope="session")
def digits() -> Tensor:
    return load_data("mini").train.images[:32]


@pytest.fixture(scope="session")
def classifier(digits: Tensor) -> Classifier:
    return trained("a_p4cnn:width=2,attention=output", digits)
