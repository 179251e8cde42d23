"""Jobs side by side on this machine."""

from __future__ import annotations

from coattend.grid.process import Ending, TrainingProcess, cores
from coattend.train.job import Job


class LocalAttempt:
    """A process on this machine; it runs as soon as there is one."""

    def __init__(self, process: TrainingProcess) -> None:
        self.process = process
        self.where = f"process {process.pid}"

    def is_running(self) -> bool:
        """Return whether it is more than queued."""
        return True

    def ending(self) -> Ending | None:
        """Return how it ended; None while it runs."""
        return self.process.ending()

    def stop(self) -> None:
        """End it now."""
        self.process.stop()


class LocalPool:
    """So many processes at a time, among which the threads of this machine are divided."""

    def __init__(self, workers: int) -> None:
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise ValueError(f"workers must be a whole number of at least 1, got {workers!r}.")
        self.workers = workers

    def has_room(self, active: int) -> bool:
        """Return whether another job can start beside ``active`` others."""
        return active < self.workers

    def start(self, job: Job) -> LocalAttempt:
        """Start a job."""
        processes = self.workers * job.devices
        return LocalAttempt(TrainingProcess(job, max(1, cores() // processes)))
