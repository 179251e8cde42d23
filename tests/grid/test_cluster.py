"""Jobs on a real Ray, started on this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("ray")

from experiments.kill_grid import workers_of

from coattend.grid import State, run_jobs
from coattend.grid.cluster import ray_pool
from coattend.train.job import Job
from tests.grid.conftest import assert_bit_identical, small_jobs
from tests.grid.test_local import stop_grid

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # sockets and logs that Ray leaves open
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
]


class WorkerKiller:
    """Kills Ray's worker of one job with SIGKILL as soon as it has a checkpoint."""

    def __init__(self, job: Job) -> None:
        self.job, self.killed = job, False
        self.lines: set[str] = set()

    def __call__(self, states: Sequence[State]) -> None:
        self.lines |= {failure for state in states for failure in state.failures}
        if not self.killed and self.job.folder.checkpoint.is_file():
            worker = workers_of(self.job.root).get(self.job.name)
            if worker is not None:
                os.kill(worker, signal.SIGKILL)
                self.killed = True


def test_runs_on_ray_are_bit_identical_to_runs_in_turn_although_a_worker_is_killed(tmp_path: Path) -> None:
    single = small_jobs(tmp_path / "grid", 20)
    (paired,) = (replace(job, devices=2) for job in small_jobs(tmp_path / "grid", 1, ("z2cnn:width=1",), (5,)))
    jobs, killer = [*single, paired], WorkerKiller(single[0])
    with ray_pool(None, 1, 0, small_jobs(tmp_path / "grid", 1)) as pool:
        run_jobs(jobs, pool, 2, killer)
    assert killer.killed
    assert any("WorkerCrashedError" in line for line in killer.lines)
    for job in single:
        straight = replace(job, root=tmp_path / "turn")
        straight.train()
        assert_bit_identical(straight.folder, job.folder)
    assert "2 processes of" in str(paired.folder.run.arithmetic)  # a placement group
    assert paired.folder.result is not None
    assert not list((tmp_path / "grid").glob(".grid-*"))


def test_ctrl_c_leaves_resumable_runs_and_no_processes(tmp_path: Path) -> None:
    stop_grid(tmp_path, signal.SIGINT, "--on", "ray")


def test_resources_that_no_machine_has_are_refused_before_anything_starts(tmp_path: Path) -> None:
    jobs = small_jobs(tmp_path)
    lacking = r"needs 1 machines with 4096 CPU; of 1 on Ray, 0 have that; lower --cpus"
    with pytest.raises(ValueError, match=lacking), ray_pool(None, 4096, 0, jobs):
        raise AssertionError
    with pytest.raises(ValueError, match="cpus must be at least 1, got 0"), ray_pool(None, 0, 0, jobs):
        raise AssertionError
    assert not list(tmp_path.rglob("seed0"))


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:9", r"cannot connect to Ray at 127\.0\.0\.1:9: Connection refused; check --address"),
        ("ray://127.0.0.1:10001", "--address is auto or HOST:PORT, got 'ray://127.0.0.1:10001'"),
    ],
)
def test_a_cluster_that_is_not_there_is_named(address: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message), ray_pool(address, 1, 0, small_jobs(tmp_path)):
        raise AssertionError
