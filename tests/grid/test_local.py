"""Real processes side by side: killed, stopped, diverging, without room on the disk."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from coattend.grid import GridError, LocalPool, State, run_jobs
from coattend.grid.process import cores, threads_of
from coattend.train import RunFolder
from coattend.train.job import Job
from coattend.train.run_folder import InUseError
from tests.grid.conftest import MODELS, SMALL, assert_bit_identical, small_jobs


class Killer:
    """Kills the process of one job with SIGKILL, so many times, each time after another epoch."""

    def __init__(self, job: Job, kills: int) -> None:
        self.job, self.kills, self.epochs = job, kills, 0

    def __call__(self, states: Sequence[State]) -> None:
        (state,) = (state for state in states if state.job is self.job)
        epochs = len(self.job.folder.history())
        if self.kills and state.attempt is not None and epochs > self.epochs and self.job.folder.checkpoint.is_file():
            os.killpg(int(state.attempt.where.split()[-1]), signal.SIGKILL)
            self.kills, self.epochs = self.kills - 1, epochs


def trained_in_turn(root: Path, jobs: Sequence[Job]) -> list[RunFolder]:
    """The same runs one after the other, in this process, which has one thread."""
    copies = [replace(job, root=root) for job in jobs]
    for job in copies:
        job.train()
    return [job.folder for job in copies]


@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_killed_run_continues_and_all_are_bit_identical_to_runs_in_turn(kills: int, tmp_path: Path) -> None:
    jobs = small_jobs(tmp_path / "grid", epochs=12 * kills)
    killer = Killer(jobs[0], kills)
    run_jobs(jobs, LocalPool(max(2, cores())), kills, killer)  # so that each has one thread
    assert killer.kills == 0
    for job, alone in zip(jobs, trained_in_turn(tmp_path / "turn", jobs), strict=True):
        assert_bit_identical(alone, job.folder)
        log = (job.folder.path / "log.txt").read_text()
        assert log.count("finished: test error") == 1
        assert "1 threads" in str(job.folder.run.arithmetic)


@pytest.mark.slow
def test_divergence_and_a_full_disk_are_said_and_the_others_finish(tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk."""
    (diverging,) = small_jobs(tmp_path, 3, ("p4cnn:width=1",), (0,), "explode=0.01")
    (large,) = small_jobs(tmp_path, 3, ("p4cnn:width=1",))
    (fine,) = small_jobs(tmp_path, epochs=1, models=("z2cnn:width=1",))
    with pytest.raises(GridError) as raised:
        run_jobs([diverging, fine], LocalPool(2), 2)
    assert "1 of 2 runs failed" in str(raised.value)
    assert "p4cnn:width=1 seed 0: training diverged: the loss is" in str(raised.value)
    assert fine.result() is not None

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, hard))
    try:
        with pytest.raises(GridError) as raised:
            run_jobs([large], LocalPool(1), 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "File too large" in str(raised.value)
    assert "bytes free" in str(raised.value)
    run_jobs([large], LocalPool(1), 0)
    assert large.result() is not None


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_grid_that_is_stopped_leaves_resumable_runs_and_no_processes(number: signal.Signals, tmp_path: Path) -> None:
    stop_grid(tmp_path, number, "--workers", "2")


def stop_grid(tmp_path: Path, number: signal.Signals, *placement: str) -> None:
    """Start a grid as a user would, and send it a signal when all its runs have a checkpoint."""
    settings = [word for setting in (*SMALL, "epochs=500") for word in ("--set", setting)]
    arguments = ["compare", *MODELS, *placement, "--folder", str(tmp_path), *settings]
    command = [sys.executable, "-m", "coattend", *arguments]
    grid = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    folders = [job.folder for job in small_jobs(tmp_path, epochs=500)]
    while not all(folder.checkpoint.is_file() for folder in folders):
        assert grid.poll() is None
        time.sleep(0.1)
    grid.send_signal(number)
    output, _ = grid.communicate(timeout=60)
    if number == signal.SIGINT:
        assert grid.returncode == 130
        assert "stopped; the same command continues from the last whole epoch" in output
    assert "Traceback" not in output
    for folder in folders:
        unlock_soon(folder)
        assert folder.load_checkpoint() is not None


def unlock_soon(folder: RunFolder) -> None:
    """Take the lock of a run within some seconds: its process has ended."""
    deadline = time.monotonic() + 20
    while True:
        try:
            folder.lock().release()
        except InUseError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        else:
            return


def test_a_run_continues_with_the_threads_that_it_began_with(tmp_path: Path) -> None:
    (job,) = small_jobs(tmp_path, epochs=1, models=("z2cnn:width=1",))
    assert threads_of(job.folder, 7) == 7
    job.train()
    assert threads_of(job.folder, 7) == 7  # finished
    job.folder.checkpoint.touch()
    assert threads_of(job.folder, 7) == 1
    description = job.folder.path / "run.json"
    description.write_text(description.read_text().replace("1 threads", f"{cores() + 1} threads"))
    assert threads_of(job.folder, 7) == 7


def test_a_process_trains_one_job_after_another(tmp_path: Path) -> None:
    """Also after one that was killed while it was idle; all of them end with the grid."""
    jobs = small_jobs(tmp_path, epochs=1, models=("z2cnn:width=1",), seeds=(0, 1, 2))
    seen: dict[str, set[str]] = {job.name: set() for job in jobs}
    pool = LocalPool(1)

    def watch(states: Sequence[State]) -> None:
        for state in states:
            if state.attempt is not None:
                seen[state.job.name].add(state.attempt.where)

    run_jobs(jobs[:2], pool, 0, watch)
    (process,) = set.union(*seen.values())
    assert all(where == {process} for where in list(seen.values())[:2])
    assert not pool.idle
    with pytest.raises(ProcessLookupError):
        os.kill(int(process.split()[-1]), 0)
    for job in jobs:
        assert (job is jobs[2]) == (job.result() is None)

    idle = pool.start(jobs[2])
    while idle.ending() is None:
        time.sleep(0.1)
    (left,) = pool.idle
    os.killpg(left.pid, signal.SIGKILL)
    (other,) = small_jobs(tmp_path / "other", epochs=1, models=("z2cnn:width=1",))
    run_jobs([other], pool, 1)
    assert other.result() is not None
    log = (other.folder.path / "log.txt").read_text()
    assert "finished: test error" in log
    assert "ended" not in log


def test_workers_are_counted_from_one() -> None:
    with pytest.raises(ValueError, match="workers must be a whole number of at least 1, got 0"):
        LocalPool(0)
