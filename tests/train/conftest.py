from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from coattend.train import Recipe, get_recipe


@pytest.fixture(autouse=True)
def _float32() -> None:
    torch.set_default_dtype(torch.float32)


def tiny(**changes: object) -> Recipe:
    """A recipe that ends in a second or two."""
    base = {"train_images": 64, "test_images": 40, "epochs": 2, "batch": 32, "equivariance_every": 1}
    return replace(get_recipe("quick", "p4cnn"), **{**base, **changes})


@pytest.fixture(scope="session")
def small_colour_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stand-ins of CIFAR-10's shape with ten classes, as an .npz that load_data reads."""
    rng = np.random.default_rng(0)
    labels = np.arange(160) % 10
    images = rng.integers(0, 255, (160, 3, 32, 32), dtype=np.uint8)
    path = tmp_path_factory.mktemp("stand-in") / "colour.npz"
    np.savez(path, images=images, labels=labels)
    return path
