"""Two processes train as one would: gradients, statistics, results."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from coattend.train import RunFolder, train
from tests.train.conftest import tiny

MODEL = "a_p4cnn:width=3,attention=output"
RECIPE = replace(
    tiny(),
    precision="64-true",
    optimizer="sgd",
    lr=0.05,
    schedule="constant",
    weight_decay=0.0,
    augmentation=(),
    epochs=2,
    train_images=72,  # the last batch is smaller, and shared unevenly
    batch=16,
)
WORKER = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from tests.train.test_distributed import MODEL, RECIPE
from coattend.train import train
train(MODEL, RECIPE, 0, Path(sys.argv[1]), accelerator="cpu")
"""


def torchrun(*arguments: str, root: Path) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    return subprocess.run(
        [*launcher, *arguments], capture_output=True, text=True, env=environment, cwd=root, check=False
    )


@pytest.mark.ddp
def test_two_processes_train_like_one_with_the_joint_batch(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    root = Path(__file__).parents[2]
    environment_root = {"PYTHONPATH": str(root)}
    os.environ.update(environment_root)
    both = torchrun(str(script), str(tmp_path / "two"), root=root)
    assert both.returncode == 0, both.stderr
    train(MODEL, RECIPE, 0, tmp_path / "one")
    one = RunFolder.of(tmp_path / "one", MODEL, RECIPE, 0)
    two = RunFolder.of(tmp_path / "two", MODEL, RECIPE, 0)
    expected, found = load_file(one.last_weights), load_file(two.last_weights)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=1e-6)
    assert two.result["error"] == one.result["error"]
    for mine, other in zip(two.history(), one.history(), strict=True):
        assert mine["train_loss"] == pytest.approx(other["train_loss"], abs=1e-6)
        assert mine["valid_loss"] == pytest.approx(other["valid_loss"], abs=1e-6)


@pytest.mark.ddp
def test_compare_works_under_torchrun(tmp_path: Path) -> None:
    settings = ["--set", "epochs=1", "--set", "train_images=64", "--set", "test_images=40"]
    models = ("z2cnn:width=4", "p4cnn:width=2")
    run = torchrun(
        "-m", "coattend", "compare", *models, "--folder", str(tmp_path), *settings, root=Path(__file__).parents[2]
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("against the first") == 1  # only one process speaks
    assert (tmp_path / "comparison.json").is_file()
