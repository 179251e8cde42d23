"""Jobs of a grid, and the commands that train them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coattend.models.records import RunError
from coattend.train import Recipe, get_recipe
from coattend.train.job import jobs_of
from coattend.train.run import Result

SMALL = ("epochs=1", "train_images=64", "test_images=40", "equivariance_every=0")


def test_a_grid_has_every_model_with_every_seed(tmp_path: Path) -> None:
    jobs = jobs_of(("p4cnn", "z2cnn"), (3, 1), "quick", tmp_path, settings=SMALL)
    assert [job.name for job in jobs] == ["p4cnn seed 3", "p4cnn seed 1", "z2cnn seed 3", "z2cnn seed 1"]
    assert len({job.folder.path for job in jobs}) == 4
    with pytest.raises(ValueError, match=r"a grid of runs has seeds without repetition, got \[0, 0\]"):
        jobs_of(("p4cnn",), (0, 0), "quick", tmp_path)
    with pytest.raises(ValueError, match="a seed is a whole number"):
        jobs_of(("p4cnn",), (-1,), "quick", tmp_path)


def test_the_command_of_a_job_trains_that_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line is parsed for real; only what it calls is replaced, to see what it is called with."""
    from coattend.cli import app

    settings = ("augmentation=rotate,flips", "train_on=train+valid", *SMALL)
    (job,) = jobs_of(("e4cnn:width=2",), (7,), "strong", tmp_path, settings=settings, accelerator="cpu", devices=2)
    calls: list[tuple[str, Recipe, int, Path, dict[str, object]]] = []

    def train(model: str, recipe: Recipe, seed: int, root: Path, **placement: object) -> Result:
        calls.append((model, recipe, seed, root, placement))
        raise RunError("enough")

    monkeypatch.setattr("coattend.train.loop.train", train)
    with pytest.raises(RunError, match="enough"):
        app.cli(args=job.arguments())
    placement = {"name": None, "accelerator": "cpu", "devices": 2, "nodes": 1}
    assert calls == [(job.model, job.recipe, 7, tmp_path, placement)]


def test_a_recipe_that_no_command_can_name_is_refused(tmp_path: Path) -> None:
    (job,) = jobs_of(("p4cnn",), (0,), "quick", tmp_path)
    with pytest.raises(ValueError, match="takes a recipe by its name and settings"):
        replace(job, recipe=replace(get_recipe("quick", "p4cnn"), lr=0.5)).arguments()


def test_a_finished_job_has_its_result_and_no_work_left(tmp_path: Path) -> None:
    (job,) = jobs_of(("z2cnn:width=2",), (0,), "quick", tmp_path, settings=SMALL)
    assert job.result() is None
    assert job.work() > 0
    result = job.train()
    assert job.result() == result
    assert job.work() == 0
    (other,) = jobs_of(("z2cnn:width=2",), (0,), "quick", tmp_path, settings=(*SMALL, "lr=0.5"))
    job.folder.path.parent.rename(other.folder.path.parent)
    with pytest.raises(RunError, match=r"holds another run: recipe\.lr differ"):
        other.result()


def test_longer_trainings_of_larger_networks_are_more_work(tmp_path: Path) -> None:
    small, large = jobs_of(("z2cnn", "p4cnn"), (0,), "paper", tmp_path)
    (colour,) = jobs_of(("p4m_resnet44",), (0,), "paper", tmp_path)
    (short,) = jobs_of(("p4cnn",), (0,), "paper", tmp_path, settings=("epochs=3",))
    assert short.work() < small.work() < large.work() < colour.work()
