"""Small trained runs that tests of several packages share; each test that writes into one copies it first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from coattend.train import compare

CONVENTIONAL, ATTENTIVE, PLAIN = "p4cnn:width=2", "a_p4cnn:attention=output,width=2", "z2cnn:width=3"
SLICED = "a_p4cnn:width=2"
SMALL = ["epochs=2", "train_images=64", "test_images=60", "equivariance_every=1"]


def trained_once(factory: pytest.TempPathFactory) -> Path:
    """Return the folder ``runs`` with CONVENTIONAL and ATTENTIVE (seeds 0 and 1) and PLAIN; SLICED is in ``sliced``.

    The processes of pytest-xdist train once and share the folder.
    """
    base = factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "trained"
    with FileLock(f"{root}.lock"):
        if not root.exists():
            torch.set_default_dtype(torch.float32)
            compare((CONVENTIONAL, ATTENTIVE, PLAIN), (0,), "quick", root / "runs", settings=SMALL)
            compare((CONVENTIONAL, ATTENTIVE), (0, 1), "quick", root / "runs", settings=SMALL)
            compare((SLICED,), (0,), "quick", root / "sliced", settings=SMALL)
    return root


def run_folder(root: Path, model: str, seed: int = 0) -> Path:
    """Return the folder of one run at or below ``root``."""
    name = model.replace(":", "_")
    (folder,) = root.rglob(f"{name}/*/seed{seed}")
    return folder
