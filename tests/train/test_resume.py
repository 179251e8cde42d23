"""Killed at random, five times, for real: the run must end as if nothing had happened."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from coattend.train import RunFolder, changed, get_recipe
from coattend.train.run_folder import WALL_CLOCK

MODEL = "a_p4cnn:width=2,attention=output,dropout=0.2"
SETTINGS = [
    "epochs=12",
    "train_images=192",
    "test_images=64",
    "batch=32",
    "augmentation=rotate,flips",
    "equivariance_every=3",
]


def command(root: Path) -> list[str]:
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    return [sys.executable, "-m", "coattend", "train", MODEL, "--seed", "7", "--folder", str(root), *settings]


def run(root: Path) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command(root), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def without_clocks(folder: RunFolder) -> list[dict]:
    return [{k: v for k, v in epoch.to_dict().items() if k not in WALL_CLOCK} for epoch in folder.history()]


@pytest.mark.slow
def test_a_run_killed_five_times_ends_bit_identical(tmp_path: Path) -> None:
    recipe = changed(get_recipe("quick", MODEL), SETTINGS)
    straight = RunFolder.of(tmp_path / "straight", MODEL, recipe, 7)
    killed = RunFolder.of(tmp_path / "killed", MODEL, recipe, 7)
    process = run(tmp_path / "straight")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output

    chance = random.Random(3)
    kills = 0
    for _ in range(5):
        process = run(tmp_path / "killed")
        epochs_before = len(killed.history())
        while process.poll() is None and len(killed.history()) <= epochs_before + chance.choice((0, 1)):
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 0.15))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.communicate(timeout=60)
    assert kills == 5
    assert killed.result is None
    process = run(tmp_path / "killed")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output

    for name in ("last.safetensors", "best.safetensors"):
        expected, found = load_file(straight.path / name), load_file(killed.path / name)
        assert all(torch.equal(expected[key], found[key]) for key in expected)
    assert without_clocks(killed) == without_clocks(straight)
    assert killed.result.error == straight.result.error

    again = subprocess.run(command(tmp_path / "killed"), capture_output=True, text=True, check=True)
    assert "was finished before; nothing done" in again.stdout


def test_ctrl_c_is_answered_and_nothing_is_lost(tmp_path: Path) -> None:
    recipe = changed(get_recipe("quick", MODEL), SETTINGS)
    folder = RunFolder.of(tmp_path, MODEL, recipe, 7)
    process = run(tmp_path)
    while len(folder.history()) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped; the same command continues from the last whole epoch" in output
    assert "Traceback" not in output
    assert folder.checkpoint.is_file()


@pytest.mark.slow
def test_a_full_disk_stops_the_run_and_keeps_the_former_checkpoint(tmp_path: Path) -> None:
    """A limit on file size, set by the operating system, stands for the full disk: the write fails half-way."""
    recipe = changed(get_recipe("quick", MODEL), SETTINGS)
    folder = RunFolder.of(tmp_path, MODEL, recipe, 7)
    process = run(tmp_path)
    while len(folder.history()) < 2:
        time.sleep(0.02)
    process.kill()
    process.communicate()
    before = folder.checkpoint.read_bytes()
    limit = len(before) - 1000
    limited = f"import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit})); " + (
        "sys.argv = sys.argv[1:]; runpy.run_module('coattend', run_name='__main__')"
    )
    arguments = [sys.executable, "-c", limited, "coattend", *command(tmp_path)[3:]]
    failed = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert failed.returncode == 74, failed.stderr
    assert "could not write the checkpoint of epoch" in failed.stderr
    assert "What was written before it is intact" in failed.stderr
    assert folder.checkpoint.read_bytes() == before
    assert not list(folder.path.glob(".checkpoint*"))
