"""What becomes of jobs, in a pool whose attempts end as the test says."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from coattend.grid import GridError, State, run_jobs, schedule
from coattend.grid.process import Ending
from coattend.report.grid_table import change_lines, grid_line
from coattend.train.job import Job
from tests.grid.conftest import small_jobs

KILLED, DIVERGED, FULL, IN_USE, DONE = (
    Ending(-9, "killed by SIGKILL"),
    Ending(2, "training diverged"),
    Ending(74, "No space left on device"),
    Ending(75, "in use"),
    Ending(0, ""),
)


class ScriptedAttempt:
    def __init__(self, pool: ScriptedPool, job: Job) -> None:
        self.where, self.pool, self.job, self.looks = "here", pool, job, 0

    def is_running(self) -> bool:
        return True

    def ending(self) -> Ending | None:
        self.looks += 1
        script = self.pool.endings[self.job.seed]
        return None if self.looks < 2 else script.pop(0) if script else DONE

    def stop(self) -> None:
        self.pool.stopped.append(self.job.seed)


class ScriptedPool:
    """Attempts at the job of a seed end with one ending after the other, and well when there is none left."""

    def __init__(self, workers: int, **endings: list[Ending]) -> None:
        self.workers, self.stopped, self.started = workers, [], []
        self.endings = defaultdict(list, {int(name[-1]): list(ends) for name, ends in endings.items()})

    def close(self) -> None:
        self.is_closed = True

    def has_room(self, active: int) -> bool:
        return active < self.workers

    def start(self, job: Job) -> ScriptedAttempt:
        self.started.append(job.seed)
        return ScriptedAttempt(self, job)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "PAUSE", 0.0)
    monkeypatch.setattr(schedule, "WAIT", 0.01)


def jobs(root: Path, count: int) -> list[Job]:
    return small_jobs(root, models=("p4cnn:width=1",), seeds=tuple(range(count)))


def test_killed_jobs_start_again_and_the_others_are_not_touched(tmp_path: Path) -> None:
    pool = ScriptedPool(2, job1=[KILLED, KILLED, KILLED])
    last: list[State] = []
    run_jobs(jobs(tmp_path, 3), pool, 3, lambda states: last.__setitem__(slice(None), states))
    assert sorted(pool.started) == [0, 1, 1, 1, 1, 2]
    assert grid_line(last) == "0 queued, 0 running, 3 done, 0 failed"


@pytest.mark.parametrize(
    ("endings", "attempts", "reason"),
    [
        ([KILLED] * 3, 3, "p4cnn:width=1 seed 0 (3 attempts): killed by SIGKILL"),
        ([FULL] * 3, 3, "p4cnn:width=1 seed 0 (3 attempts): No space left on device"),
        ([DIVERGED], 1, "p4cnn:width=1 seed 0: training diverged"),
        ([KILLED, DIVERGED], 2, "p4cnn:width=1 seed 0 (2 attempts): training diverged"),
    ],
)
def test_what_failed_is_named_with_its_reason(
    endings: list[Ending], attempts: int, reason: str, tmp_path: Path
) -> None:
    pool = ScriptedPool(1, job0=endings)
    with pytest.raises(GridError) as raised:
        run_jobs(jobs(tmp_path, 2), pool, 2)
    assert pool.started.count(0) == attempts
    assert pool.started.count(1) == 1
    assert str(raised.value).splitlines()[:2] == ["1 of 2 runs failed:", f"  {reason}"]
    assert "the same command continues" in str(raised.value)


def test_runs_in_use_are_waited_for_without_counting(tmp_path: Path) -> None:
    pool = ScriptedPool(1, job0=[IN_USE] * 5)
    notes: set[str] = set()
    run_jobs(jobs(tmp_path, 2), pool, 0, lambda states: notes.update(map(change_lines, states)))
    assert pool.started[:2] == [0, 1]  # the other one meanwhile
    assert pool.started.count(0) == 6
    assert "p4cnn:width=1 seed 0: queued (in use)" in notes


def test_the_longest_job_starts_first_and_finished_ones_do_not(tmp_path: Path) -> None:
    grid = small_jobs(tmp_path, 1, ("z2cnn:width=2", "p4cnn:width=4", "p4cnn:width=2"))
    grid[2].train()
    started: list[str] = []
    pool = ScriptedPool(1)
    begin = pool.start
    pool.start = lambda job: started.append(job.model) or begin(job)  # type: ignore[func-returns-value, method-assign]
    run_jobs(grid, pool, 0)
    assert started == ["p4cnn:width=4", "z2cnn:width=2"]


def test_leaving_ends_what_runs(tmp_path: Path) -> None:
    pool = ScriptedPool(2)

    def interrupt(states: list[State]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs(tmp_path, 3), pool, 0, interrupt)  # type: ignore[arg-type]
    assert pool.stopped == [0, 1]


def test_a_folder_that_cannot_be_made_is_a_failure_of_its_job_alone(tmp_path: Path) -> None:
    pool = ScriptedPool(1)
    begin = pool.start

    def start(job: Job) -> ScriptedAttempt:
        if job.seed == 0:
            (tmp_path / "file").touch()
            (tmp_path / "file" / "folder").mkdir()
        return begin(job)

    pool.start = start  # type: ignore[method-assign]
    with pytest.raises(GridError, match=r"1 of 2 runs failed:\n.*seed 0: cannot start: .*file/folder: Not a directory"):
        run_jobs(jobs(tmp_path, 2), pool, 0)
    with pytest.raises(ValueError, match="retries must be at least 0, got -1"):
        run_jobs([], pool, -1)
