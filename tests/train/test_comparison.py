from __future__ import annotations

import json
from pathlib import Path

import pytest

from coattend.train import RunFolder, changed, compare, get_recipe, job

SMALL = ["epochs=1", "train_images=64", "test_images=40", "equivariance_every=0"]


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

    monkeypatch.setattr(job.time, "sleep", sleep)
    found = compare(models, [0], "quick", tmp_path, settings=SMALL)
    assert [row.model for row in found.rows] == models
    assert len(pauses) == 2
    assert capsys.readouterr().out.count("waiting for runs that other processes train: p4cnn:width=1 seed 0") == 1


def test_compare_without_networks_says_what_it_expects(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="compare expects the names of networks, the first to measure the others"):
        compare([], [0], "quick", tmp_path)
