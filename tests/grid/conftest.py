from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from coattend.train import RunFolder
from coattend.train.job import Job, jobs_of
from coattend.train.run_folder import WALL_CLOCK

MODELS = ("p4cnn:width=2", "z2cnn:width=3")
SMALL = ("batch=32", "equivariance_every=0", "test_images=40", "train_images=64")


@pytest.fixture(autouse=True)
def _float32() -> None:
    torch.set_default_dtype(torch.float32)


def small_jobs(
    root: Path, epochs: int = 2, models: tuple[str, ...] = MODELS, seeds: tuple[int, ...] = (0,), *settings: str
) -> list[Job]:
    """Runs that take about a second each, apart from the start of their processes."""
    return jobs_of(models, seeds, "quick", root, settings=(*SMALL, f"epochs={epochs}", *settings), accelerator="cpu")


def assert_bit_identical(one: RunFolder, other: RunFolder) -> None:
    """All weights, measures and errors agree to the last bit, and so does the recorded arithmetic."""
    assert one.run.arithmetic == other.run.arithmetic
    for name in ("last.safetensors", "best.safetensors"):
        expected, found = load_file(one.path / name), load_file(other.path / name)
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[key], found[key]) for key in expected)
    one_history, other_history = (
        [
            {k: v for k, v in json.loads(line).items() if k not in WALL_CLOCK}
            for line in folder.metrics.read_text().splitlines()
        ]
        for folder in (one, other)
    )
    assert one_history == other_history
    assert one.result is not None
    assert other.result is not None
    assert one.result.error == other.result.error
