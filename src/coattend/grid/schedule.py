"""The schedule of a grid: which job starts next, what becomes of one that fails, and how the grid ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from coattend.grid.process import Ending
from coattend.models.records import MachineError, RunError
from coattend.train.job import WAIT, Job

PAUSE = 0.2  # seconds between two looks at the jobs
Status = Literal["queued", "running", "done", "failed"]


class GridError(RunError):
    """A grid of which some runs failed; the message names them and says why."""

    exit_code = 1


class Attempt(Protocol):
    """One attempt at a job, somewhere.

    - where: the process or machine, for messages
    """

    where: str

    def is_running(self) -> bool:
        """Return whether it has started."""
        ...

    def ending(self) -> Ending | None:
        """Return how it ended; None before."""
        ...

    def stop(self) -> None:
        """End it now."""
        ...


class Pool(Protocol):
    """Where jobs run."""

    def has_room(self, active: int) -> bool:
        """Return whether another job can be started beside ``active`` others."""
        ...

    def start(self, job: Job) -> Attempt:
        """Start a job; raises OSError if the machine refuses."""
        ...

    def close(self) -> None:
        """End the processes in which no job runs."""
        ...


@dataclass
class State:
    """What has become of a job.

    - failures: why each attempt failed that was followed by another or was the last
    - note: why it is queued again
    - resumes: the time, of time.monotonic, before which it does not start again
    """

    job: Job
    status: Status = "queued"
    attempt: Attempt | None = None
    failures: list[str] = field(default_factory=list)
    note: str = ""
    resumes: float = 0.0


def run_jobs(
    jobs: Sequence[Job], pool: Pool, retries: int, watch: Callable[[Sequence[State]], None] = lambda states: None
) -> None:
    """Run every job that is not finished, the longest first, and raise GridError at the end if some failed.

    A job that was killed, or that its machine failed, is rescheduled at most ``retries`` times and continues from its
    checkpoint. One that would fail in the same way again, such as a divergence, is not; the others are not touched.
    ``watch`` is called with all states again and again. Leaving this function for any reason ends all processes.
    """
    if retries < 0:
        raise ValueError(f"retries must be at least 0, got {retries}.")
    states = [State(job, "queued" if job.result() is None else "done") for job in jobs]
    queue = sorted((state for state in states if state.status == "queued"), key=lambda state: -state.job.work())
    active: list[State] = []
    try:
        while queue or active:
            _start(queue, active, pool, retries)
            for state in list(active):
                _advance(state, queue, active, retries)
            watch(states)
            time.sleep(PAUSE)
    finally:
        for state in active:
            if state.attempt is not None:
                state.attempt.stop()
        pool.close()
    watch(states)
    failed = [state for state in states if state.status == "failed"]
    if failed:
        raise GridError(summary(states))


def _start(queue: list[State], active: list[State], pool: Pool, retries: int) -> None:
    for state in list(queue):
        if not pool.has_room(len(active)):
            return
        if state.resumes > time.monotonic():
            continue
        queue.remove(state)
        try:
            state.attempt = pool.start(state.job)
        except OSError as error:
            reason = f"cannot start: {error.filename or state.job.folder.path}: {error.strerror or error}"
            _reschedule(state, queue, Ending(MachineError.exit_code, reason), retries)
        else:
            active.append(state)


def _advance(state: State, queue: list[State], active: list[State], retries: int) -> None:
    """Take over what has happened to an attempt."""
    assert state.attempt is not None
    ending = state.attempt.ending()
    if ending is None:
        state.status = "running" if state.attempt.is_running() else "queued"
        return
    active.remove(state)
    state.attempt = None
    if ending.is_success:
        state.status, state.note = "done", ""
    else:
        _reschedule(state, queue, ending, retries)


def _reschedule(state: State, queue: list[State], ending: Ending, retries: int) -> None:
    """Queue a job that did not end well again, unless it is of no use or has been done often enough."""
    state.status, state.note = "queued", ending.reason
    if ending.is_in_use:  # waits like a grid that is trained in turn, however long
        state.resumes = time.monotonic() + WAIT
        queue.append(state)
        return
    state.failures.append(ending.reason)
    if ending.is_final or len(state.failures) > retries:
        state.status = "failed"
        return
    machine_failed = ending.code == MachineError.exit_code
    state.resumes = time.monotonic() + (WAIT if machine_failed else 0.0)
    queue.insert(len(queue) if machine_failed else 0, state)


def summary(states: Sequence[State]) -> str:
    """Return which runs failed and why, and what to do."""
    failed = [state for state in states if state.status == "failed"]
    lines = [f"{len(failed)} of {len(states)} runs failed:"]
    for state in failed:
        attempts = len(state.failures)
        times = "" if attempts == 1 else f" ({attempts} attempts)"
        lines.append(f"  {state.job.name}{times}: {state.failures[-1]}")
    return "\n".join([*lines, "  the same command continues what is not finished."])
