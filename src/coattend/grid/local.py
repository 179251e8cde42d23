"""Jobs side by side on this machine."""

from __future__ import annotations

from contextlib import suppress

from coattend.grid.process import Ending, TrainingProcess, cores, threads_of
from coattend.train.job import Job


class LocalAttempt:
    """A job in a process on this machine; it runs as soon as there is one."""

    def __init__(self, process: TrainingProcess, idle: list[TrainingProcess]) -> None:
        self.process = process
        self.idle = idle
        self.where = f"process {process.pid}"

    def is_running(self) -> bool:
        """Return whether it is more than queued."""
        return True

    def ending(self) -> Ending | None:
        """Return how it ended; None while it runs. A process that serves others too is idle then."""
        ending = self.process.ending()
        if ending is not None and ending.is_success and self.process.serves:
            self.idle.append(self.process)
        return ending

    def stop(self) -> None:
        """End it now."""
        self.process.stop()


class LocalPool:
    """So many processes at a time, among which the threads of this machine are divided.

    A process trains one job after another, so that Python and torch start once for each process. A job of several
    processes has its own.
    """

    def __init__(self, workers: int) -> None:
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise ValueError(f"workers must be a whole number of at least 1, got {workers!r}.")
        self.workers = workers
        self.idle: list[TrainingProcess] = []

    def has_room(self, active: int) -> bool:
        """Return whether another job can start beside ``active`` others."""
        return active < self.workers

    def start(self, job: Job) -> LocalAttempt:
        """Start a job."""
        threads = max(1, cores() // (self.workers * job.devices))
        serves = job.devices * job.nodes == 1
        while serves and self.idle:
            process = self.idle.pop()
            if process.threads == threads_of(job.folder, threads):
                with suppress(OSError):  # it was killed while it was idle
                    process.train(job)
                    return LocalAttempt(process, self.idle)
            process.stop()
        return LocalAttempt(TrainingProcess(job, threads, serves=serves), self.idle)

    def close(self) -> None:
        """End the processes that are idle."""
        while self.idle:
            self.idle.pop().stop()
