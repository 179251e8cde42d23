"""A job on a machine that does not see the folder of the runs: it continues from files, and its files come back."""

from __future__ import annotations

from pathlib import Path

import pytest

from coattend.grid import remote
from coattend.grid.process import Ending
from coattend.grid.remote import Started, attempt_events, bring_back, changed_files, marker_in, run_files
from tests.grid.conftest import assert_bit_identical, small_jobs


@pytest.mark.slow
def test_what_comes_back_after_a_stop_is_enough_to_end_bit_identical(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "PATIENCE", 0.0)
    (job,) = small_jobs(tmp_path / "grid", 12, ("p4cnn:width=1",))
    unseen = tmp_path / "absent"
    attempt = attempt_events(job, 1, unseen, {}, {})
    assert isinstance(next(attempt), Started)
    while not job.folder.checkpoint.is_file():
        files = next(attempt)
        assert isinstance(files, dict)
        bring_back(files, job.folder.path)
    attempt.close()  # ends the process
    assert 0 < len(job.folder.history()) < 12
    events = list(attempt_events(job, 1, unseen, run_files(job.folder.path), {}))
    for files in events[1:-1]:
        assert isinstance(files, dict)
        bring_back(files, job.folder.path)
    assert events[-1] == Ending(0, events[-1].reason)  # type: ignore[union-attr]
    assert not job.folder.checkpoint.exists()
    assert (job.folder.path / "log.txt").read_text().count("epoch 1/12") == 1  # the second attempt continued
    (straight,) = small_jobs(tmp_path / "turn", 12, ("p4cnn:width=1",))
    straight.train()
    assert_bit_identical(straight.folder, job.folder)


def test_only_changed_files_come_back_and_never_unfinished_ones(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "tensorboard").mkdir(parents=True)
    for name in ("run.json", "checkpoint.pt", "lock", ".checkpoint.pt.abcdefgh", "tensorboard/events"):
        (there / name).write_text(name)
    known: dict[str, int] = {}
    files = changed_files(there, known)
    assert list(files) == ["checkpoint.pt", "run.json", "tensorboard/events"]
    bring_back(files, here)
    assert changed_files(there, known) == {}
    assert (here / "tensorboard/events").read_text() == "tensorboard/events"
    (there / "checkpoint.pt").unlink()
    (there / "result.json").write_text("{}")
    bring_back(changed_files(there, known), here)
    assert sorted(path.name for path in here.iterdir()) == ["result.json", "run.json", "tensorboard"]


def test_a_folder_is_recognized_by_a_file_in_it(tmp_path: Path) -> None:
    with marker_in(tmp_path / "runs") as marker:
        assert marker.parent == tmp_path / "runs"
        assert marker.is_file()
    assert not marker.exists()
