"""Training from disk with worker processes: the same as without them, resumable, and robust against bad files."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from coattend.train import Recipe, RunError, RunFolder, fit
from coattend.train.run_folder import WALL_CLOCK
from tests.data.pictures import class_folders, mask_folders

pytest.importorskip("PIL")

MODEL = "tests.own_networks:equivariant"
RECIPE = Recipe(
    "small", lr=0.02, epochs=4, batch=8, keep_images="disk", augmentation=("rotate", "flips"), equivariance_every=2
)


@pytest.fixture
def tiles(tmp_path: Path) -> Path:
    return class_folders(tmp_path / "tiles", {"a": 30, "b": 20})


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "last.safetensors")


def measures(folder: Path) -> list[dict[str, float]]:
    history = RunFolder(folder).history()
    return [{k: v for k, v in epoch.to_dict().items() if k not in WALL_CLOCK} for epoch in history]


def assert_equal(one: Path, other: Path) -> None:
    mine, theirs = weights(one), weights(other)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    assert measures(one) == measures(other)
    assert (one / "predictions.csv").read_bytes() == (other / "predictions.csv").read_bytes()


def stop_after(monkeypatch: pytest.MonkeyPatch, epochs: int, event: object = None) -> None:
    """Raise KeyboardInterrupt after so many epochs of the next training, or call ``event`` instead."""
    original = RunFolder.finish_epoch

    def finish_epoch(self: RunFolder, measured: object, checkpoint: object) -> None:
        original(self, measured, checkpoint)
        if len(self.history()) == epochs:
            if event is None:
                raise KeyboardInterrupt
            event()

    monkeypatch.setattr(RunFolder, "finish_epoch", finish_epoch)


def test_worker_processes_and_a_stop_change_nothing(
    tiles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(MODEL, tiles, RECIPE, root=tmp_path, name="alone", settings=["workers=0"])
    fit(MODEL, tiles, RECIPE, root=tmp_path, name="two", settings=["workers=2"])
    assert_equal(tmp_path / "alone" / "seed0", tmp_path / "two" / "seed0")
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            fit(MODEL, tiles, RECIPE, root=tmp_path, name="stopped", settings=["workers=2"])
    assert len(RunFolder(tmp_path / "stopped" / "seed0").history()) == 2
    fit(MODEL, tiles, RECIPE, root=tmp_path, name="stopped", settings=["workers=1"])
    assert_equal(tmp_path / "alone" / "seed0", tmp_path / "stopped" / "seed0")


def test_images_on_disk_train_nearly_as_those_in_memory(tiles: Path, tmp_path: Path) -> None:
    """Only the preprocessing is computed in another precision; the order of the images is the same."""
    on_disk = fit(MODEL, tiles, RECIPE, root=tmp_path, name="disk", settings=["workers=0", "epochs=1"])
    stored = fit(MODEL, tiles, RECIPE, root=tmp_path, name="memory", settings=["keep_images=memory", "epochs=1"])
    assert on_disk.test_error == stored.test_error
    mine, theirs = weights(tmp_path / "disk" / "seed0"), weights(tmp_path / "memory" / "seed0")
    assert all(torch.allclose(mine[key], theirs[key], rtol=1e-3, atol=1e-4) for key in mine)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_breaks_in_the_middle_is_skipped_and_reported(
    tiles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, workers: int
) -> None:
    def breaks() -> None:
        for name in ("003.png", "004.png", "005.png"):
            (tiles / "a" / name).write_bytes((tiles / "a" / name).read_bytes()[:70])

    settings = [f"workers={workers}", "bad_files=skip"]
    with monkeypatch.context() as patch:
        stop_after(patch, 2, breaks)
        result = fit(MODEL, tiles, RECIPE, root=tmp_path, name="own", settings=settings)
    folder = tmp_path / "own" / "seed0"
    assert result.epochs == 4
    with open(folder / "skipped.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [Path(row["path"]).name for row in rows] == ["003.png", "004.png", "005.png"]
    assert all("cannot be read as an image" in row["reason"] for row in rows)
    assert "images that became unreadable while training:" in capsys.readouterr().out


def test_without_the_policy_it_stops_and_continues(
    tiles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tiles / "a" / "003.png"
    whole = broken.read_bytes()
    fit(MODEL, tiles, RECIPE, root=tmp_path, name="straight", settings=["workers=0"])
    with monkeypatch.context() as patch:
        stop_after(patch, 2, lambda: broken.write_bytes(whole[:70] + bytes(len(whole) - 70)))
        with pytest.raises(RunError, match=r"003.png cannot be read .* with --set bad_files=skip without it"):
            fit(MODEL, tiles, RECIPE, root=tmp_path, name="own", settings=["workers=2"])
    broken.write_bytes(whole)
    fit(MODEL, tiles, RECIPE, root=tmp_path, name="own", settings=["workers=2", "bad_files=skip"])
    assert_equal(tmp_path / "straight" / "seed0", tmp_path / "own" / "seed0")


def test_masks_on_disk(tmp_path: Path) -> None:
    top = mask_folders(tmp_path / "cells", 20, size=16)
    settings = ["augmentation=quarter-turns", "class_weights=balanced", "epochs=2"]
    fit("tests.own_networks:segmenter", top, RECIPE, root=tmp_path, name="disk", settings=[*settings, "workers=1"])
    rows = (tmp_path / "disk" / "seed0" / "predictions.csv").read_text().splitlines()
    assert len(rows) == 3


def test_steps_that_need_all_images_are_refused(tiles: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="per-pixel and zca learn from all images in memory"):
        fit(MODEL, tiles, RECIPE, root=tmp_path, settings=["preprocessing=per-pixel"])


@pytest.mark.slow
def test_a_process_with_workers_that_is_killed_continues(tiles: Path, tmp_path: Path) -> None:
    settings = ["epochs=8", "batch=8", "keep_images=disk", "workers=2", "augmentation=rotate", "size=12"]
    arguments = [part for setting in settings for part in ("--set", setting)]

    def start(name: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "coattend", "train", MODEL, "--data", str(tiles), "--name", name]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen([*command, "--folder", str(tmp_path), *arguments], env=environment)

    assert start("straight").wait(timeout=300) == 0
    killed = RunFolder(tmp_path / "killed" / "seed0")
    for epochs in (1, 3):
        process = start("killed")
        while process.poll() is None and len(killed.history()) < epochs:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert start("killed").wait(timeout=300) == 0
    assert_equal(tmp_path / "straight" / "seed0", tmp_path / "killed" / "seed0")
