from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from coattend.train import RunError, RunFolder, changed, compare, comparison, get_recipe
from coattend.train.comparison import over_images, over_seeds

SMALL = ["epochs=1", "train_images=64", "test_images=40", "equivariance_every=0"]


def test_the_interval_over_seeds_is_students() -> None:
    deltas = [-0.31, -0.12, -0.45, 0.05]
    found = over_seeds(deltas)
    reference = stats.ttest_1samp(deltas, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high))
    assert found.mean == pytest.approx(np.mean(deltas))
    assert found.verdict == "undecided"
    assert over_seeds([-0.30, -0.31, -0.29]).verdict == "better"
    assert over_seeds([0.30, 0.31, 0.29]).verdict == "worse"


def test_the_bootstrap_agrees_with_the_normal_approximation() -> None:
    rng = np.random.default_rng(1)
    base, other = rng.random(20_000) < 0.030, rng.random(20_000) < 0.024
    found = over_images(base, other)
    delta = 100.0 * (other.astype(int) - base.astype(int))
    reach = 1.96 * delta.std() / np.sqrt(len(delta))
    assert found.mean == pytest.approx(delta.mean())
    assert (found.low, found.high) == pytest.approx((delta.mean() - reach, delta.mean() + reach), abs=0.02)
    assert found.verdict == "better"
    assert "one seed" in found.method
    assert over_images(base, base).mean == 0


def test_compare_trains_resumes_and_writes_down(tmp_path: Path) -> None:
    models = ["p4cnn:width=2", "a_p4cnn:width=2,attention=output"]
    first = compare(models, [0], "quick", tmp_path, settings=SMALL)
    assert [row.model for row in first.rows] == models
    assert first.rows[0].against_first is None
    assert "bootstrap" in first.rows[1].against_first.method
    marks = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    second = compare(models, [0, 1], "quick", tmp_path, settings=SMALL)
    assert all(path.stat().st_mtime_ns == mark for path, mark in marks.items())  # seed 0 was there
    assert len(second.rows[0].errors) == 2
    assert "paired over 2 seeds" in second.rows[1].against_first.method
    written = json.loads((tmp_path / "comparison.json").read_text())
    assert written["rows"][1]["errors"] == list(second.rows[1].errors)
    assert len(written["folders"]) == 4
    with pytest.raises(ValueError, match="without repetition"):
        compare([models[0], models[0]], [0], "quick", tmp_path)


def test_runs_in_use_are_waited_for_after_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    models = ["p4cnn:width=1", "z2cnn:width=2"]
    recipe = changed(get_recipe("quick", models[0]), SMALL)
    lock = RunFolder.of(tmp_path, models[0], recipe, 0).lock()
    pauses = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        assert list(tmp_path.rglob("z2cnn*/*/seed0/result.json"))  # the other one is done meanwhile
        if len(pauses) == 2:
            lock.release()

    monkeypatch.setattr(comparison.time, "sleep", sleep)
    found = compare(models, [0], "quick", tmp_path, settings=SMALL)
    assert [row.model for row in found.rows] == models
    assert len(pauses) == 2
    assert capsys.readouterr().out.count("waiting for runs that other processes train: p4cnn:width=1 seed 0") == 1


def test_compare_without_networks_says_what_it_expects(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="compare expects the names of networks, the first to measure the others"):
        compare([], [0], "quick", tmp_path)


def test_predictions_of_other_images_are_not_compared(tmp_path: Path) -> None:
    for name, images in (("base", 5), ("other", 3)):
        (tmp_path / name).mkdir()
        labels = np.zeros(images, np.uint16)
        np.savez_compressed(tmp_path / name / "predictions.npz", labels=labels, last=labels)
        result = {"error": {"last": 0.0, "valid": None, "test_optimistic": None}, "model": "p4cnn", "seed": 0}
        result |= {
            "provenance": "made",
            "parameters": 1,
            "recipe": "quick",
            "data": "mini",
            "epochs": 1,
            "seconds": 1.0,
        }
        result |= {"valid_epoch": None, "valid_error": None, "equivariance_error": None, "seconds_per_epoch": 1.0}
        (tmp_path / name / "result.json").write_text(json.dumps(result))
    folders = [RunFolder(tmp_path / name) for name in ("base", "other")]
    with pytest.raises(RunError, match="it has 3 test images, .*base.* has 5"):
        comparison.difference(folders[:1], folders[1:])
