"""The table of a grid while it runs."""

from __future__ import annotations

import json
import time
from pathlib import Path

from rich.console import Console

from coattend.grid import State
from coattend.report.grid_table import grid_table
from coattend.train.job import Job, jobs_of


class Somewhere:
    where = "machine7"

    def is_running(self) -> bool:
        return True

    def ending(self) -> None:
        return None

    def stop(self) -> None:
        raise AssertionError


def printed(states: list[State], lines: int | None = None) -> list[str]:
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115 (closed below)
    console.print(grid_table(states, lines))
    console.file.close()
    return [line.strip() for line in console.export_text().splitlines()]


def jobs(root: Path, seeds: int) -> list[Job]:
    return jobs_of(("p4cnn",), tuple(range(seeds)), "quick", root)


def write_epochs(job: Job, seconds: float, count: int) -> None:
    job.folder.path.mkdir(parents=True)
    measured = {"train_loss": 1.0, "seconds": seconds, "time": time.time()}
    lines = (json.dumps({"epoch": number, **measured}) + "\n" for number in range(count))
    job.folder.metrics.write_text("".join(lines))


def test_a_running_job_has_its_epoch_and_the_time_left(tmp_path: Path) -> None:
    (job,) = jobs(tmp_path, 1)
    write_epochs(job, 600.0, 3)
    lines = printed([State(job, "running", Somewhere())])
    (line,) = (line for line in lines if line.startswith("p4cnn seed 0"))
    _, _, _, state, epoch, left, where = line.split()
    assert (state, epoch, where) == ("running", "3/12", "machine7")
    hours, minutes, seconds = map(int, left.split(":"))  # 9 epochs of ten minutes, one of which has begun
    assert 5390 <= 3600 * hours + 60 * minutes + seconds <= 5400


def test_failures_have_a_line_each_and_attempts_a_number(tmp_path: Path) -> None:
    failed, again, waiting = jobs(tmp_path, 3)
    states = [
        State(failed, "failed", failures=["training diverged: " + "very long " * 20]),
        State(again, "running", Somewhere(), failures=["killed by SIGKILL"]),
        State(waiting, "queued", failures=["killed by SIGKILL"], note="killed by SIGKILL"),
    ]
    lines = printed(states)
    assert len([line for line in lines if "very long" in line]) == 1
    assert any("running" in line and "attempt 2: machine7" in line for line in lines)
    assert any("queued" in line and "attempt 2: killed by SIGKILL" in line for line in lines)
    assert lines[-1] == "1 queued, 1 running, 0 done, 1 failed"


def test_a_low_terminal_shows_what_runs_and_what_failed(tmp_path: Path) -> None:
    states = [State(job) for job in jobs(tmp_path, 40)]
    states[30].status, states[30].attempt = "running", Somewhere()
    states[35].status, states[35].failures = "failed", ["why"]
    shown = [line for line in printed(states, 3) if line.startswith("p4cnn")]
    assert [line.split()[2] for line in shown] == ["0", "30", "35"]
