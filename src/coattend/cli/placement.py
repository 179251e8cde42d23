"""Where the runs of a grid are trained: the arguments that its verbs share, and the display of its progress."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from coattend._terminal import console, say
from coattend.cli.program import shown

if TYPE_CHECKING:
    from coattend.grid.schedule import Pool, State
    from coattend.train.job import Job

FRAME = 6  # lines of a table that are not runs


@dataclass(frozen=True)
class Placement:
    """Where runs are trained; by default one after the other in this process.

    Args:
        workers: Train so many runs side by side on this machine, in processes that divide its threads.
        on: Train on Ray, which is started here unless --address is given.
        address: The address of an existing Ray cluster, for example auto or 10.0.0.1:6379.
        cpus: Processors for each process of a run, on Ray and SLURM; the run has as many threads.
        gpus: GPUs for each process of a run, on Ray and SLURM.
        retries: How often a run that was killed is started again; it continues from its checkpoint.
    """

    workers: Annotated[int | None, shown("RUNS")] = None
    on: Annotated[Literal["ray"] | None, shown("ray")] = None
    address: Annotated[str | None, shown("ADDRESS")] = None
    cpus: int = 1
    gpus: int = 0
    retries: int = 3

    @property
    def is_in_turn(self) -> bool:
        """Whether this process trains one run after the other itself."""
        return self.workers is None and self.on is None

    def run(self, jobs: Sequence[Job]) -> None:
        """Train all jobs; raises GridError at the end if some failed."""
        from coattend.grid import run_jobs
        from coattend.train.job import train_in_turn

        if self.address is not None and self.on is None:
            raise ValueError("--address is that of a Ray cluster; add --on ray.")
        if self.is_in_turn:
            train_in_turn(jobs)
            return
        with self._pool(jobs) as pool, _Display() as display:
            run_jobs(jobs, pool, self.retries, display.show)

    @contextmanager
    def _pool(self, jobs: Sequence[Job]) -> Iterator[Pool]:
        from coattend.grid import LocalPool

        if self.on is None:
            assert self.workers is not None
            yield LocalPool(self.workers)
            return
        if self.workers is not None:
            raise ValueError("Ray starts as many runs as --cpus and --gpus leave room for; leave out --workers.")
        from coattend.grid.cluster import ray_pool

        with ray_pool(self.address, self.cpus, self.gpus, jobs) as pool:
            yield pool


PlacementArguments = Annotated[Placement, tyro.conf.arg(name="")]
IN_TURN = Placement()


class _Display:
    """A live table in a terminal, elsewhere a line for each change."""

    def __init__(self) -> None:
        from rich.live import Live

        self.console = console()
        self.live = Live(console=self.console, refresh_per_second=2, transient=False)
        self.lines: dict[int, str] = {}

    def __enter__(self) -> _Display:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def show(self, states: Sequence[State]) -> None:
        """Show all states."""
        from coattend.report.grid_table import change_lines, grid_table

        if self.console.is_terminal:
            self.live.update(grid_table(states, max(3, self.console.height - FRAME)))
            return
        for number, state in enumerate(states):
            line = change_lines(state)
            if self.lines.get(number) != line:
                self.lines[number] = line
                if state.status != "queued" or state.note:
                    say(line)
