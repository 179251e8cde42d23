"""Two processes train as one would: gradients, statistics, results."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
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
import time
from pathlib import Path
import torch
torch.set_num_threads(1)
from tests.train.test_distributed import MODEL, RECIPE
from coattend.train import train
train(MODEL, RECIPE, 0, Path(sys.argv[1]), accelerator="cpu")
"""


def environment() -> dict[str, str]:
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}


def torchrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    return subprocess.run([*launcher, *arguments], capture_output=True, text=True, env=environment(), check=False)


@pytest.mark.ddp
def test_two_processes_train_like_one_with_the_joint_batch(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    both = torchrun(str(script), str(tmp_path / "two"))
    assert both.returncode == 0, both.stderr
    train(MODEL, RECIPE, 0, tmp_path / "one")
    one = RunFolder.of(tmp_path / "one", MODEL, RECIPE, 0)
    two = RunFolder.of(tmp_path / "two", MODEL, RECIPE, 0)
    expected, found = load_file(one.last_weights), load_file(two.last_weights)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=1e-6)
    assert two.result.error == one.result.error
    for mine, other in zip(two.history(), one.history(), strict=True):
        assert mine.train_loss == pytest.approx(other.train_loss, abs=1e-6)
        assert mine.valid_loss == pytest.approx(other.valid_loss, abs=1e-6)


@pytest.mark.ddp
@pytest.mark.slow
def test_compare_works_under_torchrun(tmp_path: Path) -> None:
    settings = ["--set", "epochs=1", "--set", "train_images=64", "--set", "test_images=40"]
    models = ("z2cnn:width=4", "p4cnn:width=2")
    run = torchrun("-m", "coattend", "compare", *models, "--folder", str(tmp_path), *settings)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("against the first") == 1  # only one process speaks
    assert (tmp_path / "comparison.json").is_file()


def alone(*arguments: str) -> subprocess.Popen[str]:
    """The command line with Fabric's own launcher, which starts the second process."""
    command = [sys.executable, "-m", "coattend", "train", "p4cnn:width=2", "--devices", "2", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())


@pytest.mark.ddp
@pytest.mark.slow
def test_a_mistake_that_only_the_first_process_meets_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    process = alone("--folder", str(tmp_path / "file"))
    _, complaint = process.communicate(timeout=120)
    assert process.returncode == 2
    assert complaint.count("cannot make the run folder") == 1
    assert "Traceback" not in complaint


@pytest.mark.ddp
@pytest.mark.slow
def test_divergence_stops_both_processes_with_one_line(tmp_path: Path) -> None:
    process = alone("--folder", str(tmp_path), "--set", "explode=0.01", "--set", "train_images=64")
    _, complaint = process.communicate(timeout=120)
    assert process.returncode == 2
    assert complaint.count("training diverged") == 1
    assert "Traceback" not in complaint


@pytest.mark.ddp
def test_a_killed_process_is_named_by_the_one_that_is_left(tmp_path: Path) -> None:
    process = alone("--folder", str(tmp_path), "--set", "epochs=500", "--set", "train_images=64")
    while not list(tmp_path.rglob("checkpoint.pt")):
        assert process.poll() is None
        time.sleep(0.05)
    (child,) = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
    os.kill(child, signal.SIGKILL)
    _, complaint = process.communicate(timeout=120)
    assert process.returncode == 74
    assert "another process of this training ended" in complaint
    assert "Traceback" not in complaint
