"""How far from the best possible is the schedule of the whole Table 1, five seeds each, on many machines?

    python -m experiments.grid_simulation [--seeds 5]

Jobs start in the order of `coattend.grid`, the most multiply-adds first, as soon as a worker is free. How long they
take is measured where it can be: seconds per epoch of the rows that results/runs.jsonl has by the paper's recipe.
Other rows take their multiply-adds at the median pace of the measured ones. Every job is then longer or shorter by a
factor that was measured too: the ratio of a run's seconds per epoch to the median of its row, drawn for each job. The
order does not know these times. No schedule is shorter than the longest job, nor than all work divided by the
workers.
"""

from __future__ import annotations

import heapq
import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import tyro

from coattend.train import PAPER
from coattend.train.job import Job, jobs_of
from coattend.train.record import Record, read_records
from coattend.train.row import rows_of

RESULTS = Path(__file__).parents[1] / "results" / "runs.jsonl"
WORKERS = (8, 64, 512)


def makespan(seconds: Sequence[float], workers: int) -> float:
    """Return when the last job ends if each starts, in this order, as soon as one of the workers is free.

    >>> makespan([3, 3, 2, 2, 2], 2)
    7
    """
    free = [0.0] * workers
    for duration in seconds:
        heapq.heappush(free, heapq.heappop(free) + duration)
    return max(free)


def lower_bound(seconds: Sequence[float], workers: int) -> float:
    """Return a time that no schedule undercuts.

    >>> lower_bound([3, 3, 2, 2, 2], 2), lower_bound([9, 1, 1], 2)
    (6.0, 9)
    """
    return max(*seconds, sum(seconds) / workers)


def measured_hours(records: Sequence[Record]) -> dict[str, float]:
    """Return the hours of a training by the paper's recipe, of the rows that were run."""
    paper = [r for r in records if r.result.recipe == "paper" and not r.result.settings and r.result.model in PAPER]
    rows = rows_of(paper).values()
    return {row.model: row.seconds_per_epoch * PAPER[row.model].epochs / 3600 for row in rows}


def measured_ratios(records: Sequence[Record]) -> list[float]:
    """Return how the time of an epoch differs between runs of one row, where there are at least three."""
    rows = [row for row in rows_of(records).values() if len(row.seeds) >= 3]
    return [r.result.seconds_per_epoch / row.seconds_per_epoch for row in rows for r in row.records]


def job_hours(jobs: Sequence[Job], records: Sequence[Record], chance: random.Random) -> list[float]:
    """Return the hours of every job: measured, or at the median pace of those that were."""
    measured, ratios = measured_hours(records), measured_ratios(records)
    work = {job.model: job.work() for job in jobs}
    pace = statistics.median(hours / work[model] for model, hours in measured.items())
    return [measured.get(job.model, pace * work[job.model]) * chance.choice(ratios) for job in jobs]


def main(seeds: int = 5, draws: int = 20) -> int:
    """Print makespan and lower bound for each number of workers, for two orders of the jobs.

    Args:
        seeds: Seeds of every row.
        draws: Draws of the times, whose mean is shown.
    """
    records = read_records(RESULTS)
    jobs = jobs_of(tuple(PAPER), tuple(range(seeds)), "paper", Path("nowhere"))
    longest_first = sorted(jobs, key=lambda job: -job.work())
    measured = measured_hours(records)
    print(f"{len(jobs)} jobs; {len(measured)} of {len(PAPER)} rows measured: {', '.join(sorted(measured))}")
    print("| workers | lower bound, h | longest first, h | ratio | as listed, h | ratio |\n|---|---|---|---|---|---|")
    for workers in WORKERS:
        bounds, first, listed = [], [], []
        for draw in range(draws):
            hours = dict(zip(jobs, job_hours(jobs, records, random.Random(draw)), strict=True))
            bounds.append(lower_bound(list(hours.values()), workers))
            first.append(makespan([hours[job] for job in longest_first], workers))
            listed.append(makespan([hours[job] for job in jobs], workers))
        bound, best, plain = (statistics.fmean(times) for times in (bounds, first, listed))
        print(f"| {workers} | {bound:.0f} | {best:.0f} | {best / bound:.3f} | {plain:.0f} | {plain / bound:.3f} |")
    print(
        f"one worker: {statistics.fmean(sum(job_hours(jobs, records, random.Random(d))) for d in range(draws)):.0f} h"
    )
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main, description=__doc__))
