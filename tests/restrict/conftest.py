from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from coattend.train import RunFolder, get_recipe, train

MODEL = "a_p4cnn:width=3"


@pytest.fixture(autouse=True)
def _float32() -> None:
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network trained for a moment on a little of mini."""
    torch.set_default_dtype(torch.float32)
    root = tmp_path_factory.mktemp("runs")
    recipe = replace(get_recipe("quick", MODEL), epochs=2, train_images=192, test_images=100)
    train(MODEL, recipe, 0, root, accelerator="cpu")
    return RunFolder.of(root, MODEL, recipe, 0).path
