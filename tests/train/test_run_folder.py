"""Which folder a run has, what may be there already, and what happens to it."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coattend.data import Split, load_data
from coattend.train import Result, RunError, RunFolder, changed, get_recipe, train, training
from tests.train.conftest import tiny

MODEL = "p4cnn:width=1"
SMALL = {"epochs": 1, "train_images": 20, "valid_images": 10, "test_images": 10, "equivariance_every": 0, "batch": 20}


def images(path: Path, seed: int, classes: int = 3) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    np.savez(path, images=rng.integers(0, 255, (60, 28, 28), dtype=np.uint8), labels=np.arange(60) % classes)
    return path


def test_only_half_written_files_are_removed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    mine = [tmp_path / name for name in (".notes", ".gitignore", ".run.json.swp", ".checkpoint.pt.backup1.txt")]
    for path in mine:
        path.touch()
    (tmp_path / ".ipynb_checkpoints").mkdir()
    (tmp_path / ".run.json.abcdefgh").mkdir()
    half_written = tmp_path / ".checkpoint.pt.ab_cd3fg"
    half_written.touch()
    folder.lock().release()
    assert all(path.exists() for path in mine)
    assert (tmp_path / ".ipynb_checkpoints").is_dir()
    assert not half_written.exists()


def test_another_folder_of_the_same_name_is_another_run(tmp_path: Path) -> None:
    first, second = images(tmp_path / "a" / "tiles.npz", 0), images(tmp_path / "b" / "tiles.npz", 1)
    train(MODEL, tiny(data=str(first), **SMALL), 0, tmp_path / "runs")
    with pytest.raises(RunError, match=r"holds another run: the images differ; choose another --folder or --name"):
        train(MODEL, tiny(data=str(second), **SMALL), 0, tmp_path / "runs")
    moved = first.rename(tmp_path / "tiles.npz")  # the same images elsewhere are the same run
    assert train(MODEL, tiny(data=str(moved), **SMALL), 0, tmp_path / "runs").was_finished
    images(moved, 2)
    with pytest.raises(RunError, match="the images differ"):
        train(MODEL, tiny(data=str(moved), **SMALL), 0, tmp_path / "runs")


def test_a_run_on_version_1_of_rotated_mnist_is_not_continued_on_version_2(tmp_path: Path) -> None:
    """Earlier releases called version 1 as version 2 is called now."""
    mini = load_data("mini")
    former = replace(mini, name="rotated-mnist", provenance="generated from MNIST (seed 2020)")
    folder, recipe, device = RunFolder(tmp_path), tiny(data="rotated-mnist"), torch.device("cpu")
    folder.describe(MODEL, recipe, 0, former, 1, device)
    today = replace(former, provenance="generated from MNIST (seed 2020, version 2)")
    for split in ("train", "valid", "test"):
        part = getattr(former, split)
        today = replace(today, **{split: Split(part.images.mT, part.labels)})
    for data, what in ((None, "recipe.data"), (today, "the images")):  # a finished run is compared by name only
        with pytest.raises(RunError, match=f"{what} differ; .* \\(seed 2020\\)\\) are now called rotated-mnist-v1"):
            folder.check_same(MODEL, recipe, 0, data)
    for data in (None, former):
        folder.check_same(MODEL, tiny(data="rotated-mnist-v1"), 0, data)


def test_a_path_may_be_spelled_in_many_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = images(tmp_path / "tiles.npz", 0)
    monkeypatch.chdir(tmp_path)
    train(MODEL, tiny(data="tiles.npz", **SMALL), 0, "runs")
    folder = RunFolder.of("runs", MODEL, tiny(data="tiles.npz", **SMALL), 0)
    assert folder.run.recipe.data == str(path)
    (folder.path / "result.json").unlink()
    for spelling in ("./tiles.npz", str(path), "runs/../tiles.npz"):
        assert not train(MODEL, tiny(data=spelling, **SMALL), 0, "runs").was_finished
        (folder.path / "result.json").unlink()


def test_runs_begun_by_older_versions_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = images(tmp_path / "tiles.npz", 0)
    monkeypatch.chdir(tmp_path)
    recipe = tiny(data="tiles.npz", **SMALL)
    train(MODEL, recipe, 0, "runs")
    folder = RunFolder.of("runs", MODEL, recipe, 0)
    old = folder.run.to_dict()
    del old["data_digest"], old["recipe"]["settings"], old["recipe"]["size"]
    old["recipe"]["data"] = "tiles.npz"
    (folder.path / "run.json").write_text(json.dumps(old))
    assert train(MODEL, recipe, 0, "runs").was_finished
    (folder.path / "result.json").unlink()
    assert not train(MODEL, tiny(data=str(path), **SMALL), 0, "runs").was_finished


def test_settings_in_another_order_are_the_same_run(tmp_path: Path) -> None:
    quick = get_recipe("quick", MODEL)
    one = changed(quick, ["epochs=1", "batch=32", "train_on=train+valid"])
    other = changed(quick, ["train_on=train+valid", "batch=32", "epochs=1"])
    assert one == other
    new = RunFolder.of(tmp_path, MODEL, one, 0).path
    assert new.parent.name == "quick+batch=32+epochs=1+train_on=train+valid"
    old = new.parents[1] / "quick+epochs=1+batch=32+train_on=train+valid" / "seed0"
    old.mkdir(parents=True)
    assert RunFolder.of(tmp_path, MODEL, one, 0).path == old
    assert RunFolder.of(tmp_path, MODEL, changed(quick, ["epochs=2", "batch=32"]), 0).path != old


def test_many_settings_fit_into_a_folders_name(tmp_path: Path) -> None:
    settings = [f"{name}=0.0123456789" for name in ("lr", "eps", "weight_decay", "attention_lr", "bias_lr", "head_lr")]
    settings += ["augmentation=rotate,flips", "explode=1234567.5", "epochs=1", "milestones=0.1,0.2,0.3,0.4,0.5,0.6"]
    long = changed(get_recipe("quick", MODEL), settings)
    path = RunFolder.of(tmp_path, f"{MODEL},{'x' * 400}", long, 0).path
    assert all(len(part.encode()) <= 120 for part in path.relative_to(tmp_path).parts)
    path.mkdir(parents=True)
    shorter = changed(get_recipe("quick", MODEL), [*settings[:-1], "milestones=0.1,0.2,0.3,0.4,0.5,0.7"])
    assert RunFolder.of(tmp_path, f"{MODEL},{'x' * 400}", shorter, 0).path != path


def test_a_run_may_have_a_short_name(tmp_path: Path) -> None:
    train(MODEL, tiny(**SMALL), 3, tmp_path, name="tissue-v1")
    assert (tmp_path / "tissue-v1" / "seed3" / "result.json").is_file()
    assert train(MODEL, tiny(**SMALL), 3, tmp_path, name="tissue-v1").was_finished
    with pytest.raises(RunError, match=r"holds another run: recipe.lr differ"):
        train(MODEL, tiny(lr=0.1, **SMALL), 3, tmp_path, name="tissue-v1")
    for name in ("a/b", "..", "", "x" * 121):
        with pytest.raises(RunError, match="a run's name may have letters, digits"):
            train(MODEL, tiny(**SMALL), 0, tmp_path, name=name)


@pytest.mark.parametrize("changes", [{"data": "minii"}, {"augmentation": ("spin",)}, {"preprocessing": ("shake",)}])
def test_a_start_that_fails_leaves_no_folder(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown"):
        train(MODEL, tiny(**SMALL, **changes), 0, tmp_path / "runs")
    with pytest.raises(ValueError, match="no option"):
        train("p4cnn:widht=1", tiny(**SMALL), 0, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_run_that_another_process_finished_meanwhile_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny(**SMALL)
    lock = RunFolder.lock
    others: list[Result] = []

    def late(self: RunFolder) -> Any:
        monkeypatch.setattr(RunFolder, "lock", lock)
        others.append(train(MODEL, recipe, 0, tmp_path))  # looked before, locked after
        return lock(self)

    monkeypatch.setattr(RunFolder, "lock", late)
    assert train(MODEL, recipe, 0, tmp_path) == replace(others[0], was_finished=True)


def test_a_checkpoint_left_by_a_kill_at_the_very_end_goes(tmp_path: Path) -> None:
    train(MODEL, tiny(**SMALL), 0, tmp_path)
    folder = RunFolder.of(tmp_path, MODEL, tiny(**SMALL), 0)
    folder.checkpoint.touch()
    assert train(MODEL, tiny(**SMALL), 0, tmp_path).was_finished
    assert not folder.checkpoint.exists()


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("target", ["write", "append_metrics", "save_weights", "write_predictions"])
def test_a_full_disk_is_one_sentence_with_what_to_do(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training if target == "save_weights" else RunFolder, target, full)
    with pytest.raises(
        RunError, match=r"could not write into .*: No space left on device .*the same command continues"
    ):
        train(MODEL, tiny(**SMALL), 0, tmp_path)


@pytest.mark.parametrize("method", ["__init__", "add_scalar", "close"])
def test_tensorboard_stops_no_training(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(f"torch.utils.tensorboard.SummaryWriter.{method}", full)
    assert train(MODEL, tiny(**SMALL), 0, tmp_path).error
    assert capsys.readouterr().err.count("no more TensorBoard logs") == 1


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, True])
def test_seeds_are_checked(seed: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a seed is a whole number from 0 to 4294967295, got"):
        train(MODEL, tiny(**SMALL), seed, tmp_path)


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ({"accelerator": "tpu"}, "accelerator must be one of auto, cpu, cuda, mps, got 'tpu'"),
        ({"accelerator": "cuda"}, "this machine has no cuda device that torch can use; choose one of auto, cpu"),
        ({"devices": -1}, "devices must be a whole number of at least 1, got -1"),
        ({"nodes": 0}, "nodes must be a whole number of at least 1, got 0"),
    ],
)
def test_processors_are_checked(
    placement: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match=message):
        train(MODEL, tiny(**SMALL), 0, tmp_path, **placement)


def test_weights_that_are_not_finite_after_the_last_step_are_a_diverged_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(self: torch.optim.Optimizer) -> None:
        self.param_groups[0]["params"][0].data.fill_(torch.nan)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    recipe = tiny(**SMALL)
    with pytest.raises(RunError, match=r"training diverged: \S+ is not finite after epoch 0\. To prevent it, lower"):
        train(MODEL, recipe, 0, tmp_path)
    assert RunFolder.of(tmp_path, MODEL, recipe, 0).result is None


def test_a_network_whose_test_loss_is_not_finite_is_a_diverged_run(tmp_path: Path) -> None:
    recipe = tiny(**SMALL, optimizer="sgd", lr=1e9, attention_lr=1e9, head_lr=1e9, schedule="constant")
    with pytest.raises(
        RunError, match=r"training diverged: the test loss is (nan|inf)\. To prevent it, lower .*lr=1e\+08"
    ):
        train(MODEL, recipe, 0, tmp_path)
