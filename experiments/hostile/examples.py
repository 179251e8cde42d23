"""Healthy examples to damage: tiny networks, a few images."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments.hostile.kinds import command

MODEL = "a_p4cnn:width=1,attention=output"
SETTINGS = ("epochs=2", "train_images=24", "valid_images=10", "test_images=10", "batch=12", "equivariance_every=0")
CLASSES = 10


def train_command(root: Path, model: str = MODEL, data: object = "mini") -> list[str]:
    """Return the command that trains the example, or continues its training."""
    arguments = ["train", model, "--data", str(data), "--recipe", "quick", "--folder", str(root)]
    return arguments + [part for setting in SETTINGS for part in ("--set", setting)]


def trained_run(folder: Path, model: str = MODEL) -> Path:
    """Make a finished run below ``folder / "runs"``, and a dataset of a few images next to it."""
    few_images(folder / "few.npz")
    command(*train_command(folder / "runs", model))
    return run_in(folder / "runs")


def run_in(root: Path) -> Path:
    """Return the only run below a folder."""
    (description,) = root.rglob("run.json")
    return description.parent


def few_images(path: Path) -> None:
    """Write three noisy images of each class."""
    drawn = np.random.default_rng(0)
    labels = np.arange(3 * CLASSES) % CLASSES
    np.savez(path, images=drawn.integers(0, 256, (len(labels), 28, 28), dtype=np.uint8), labels=labels)


def digit(path: Path, size: int = 28) -> None:
    """Write one noisy image file."""
    from PIL import Image

    Image.fromarray(np.random.default_rng(1).integers(0, 256, (size, size), dtype=np.uint8)).save(path)
