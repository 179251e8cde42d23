"""The table of a grid of runs: queued, running with epoch and time left, done, failed."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Sequence
from typing import get_args

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from coattend.grid import State
from coattend.grid.schedule import Status

NAME_WIDTH = 32  # columns that the name of a run has at least, if it is so long
RECENT = 5  # epochs whose median predicts the next
URGENCY: tuple[Status, ...] = ("running", "failed", "queued", "done")  # in a terminal that is too low for all


def grid_table(states: Sequence[State], lines: int | None = None) -> Group:
    """Return a line for each run; if there are more than ``lines``, those that run or failed and then the others."""
    by_urgency = sorted(states, key=lambda state: URGENCY.index(state.status))
    shown = {id(state) for state in by_urgency[:lines]}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    names = max((len(state.job.name) for state in states), default=0)
    table.add_column("run", overflow="fold", min_width=min(names, NAME_WIDTH))
    table.add_column("state", no_wrap=True, min_width=len("running"))
    for heading in ("epoch", "left"):
        table.add_column(heading, justify="right", no_wrap=True, min_width=len("1:00:00"))
    table.add_column("", overflow="ellipsis", no_wrap=True)  # the reason of a failure in full is in the summary
    for state in states:
        if id(state) in shown:
            table.add_row(state.job.name, state.status, *_progress(state), _remark(state))
    return Group(table, Text(grid_line(states)))


def grid_line(states: Sequence[State]) -> str:
    """Return how many runs are in each state."""
    counts = Counter(state.status for state in states)
    return ", ".join(f"{counts[status]} {status}" for status in get_args(Status))


def change_lines(state: State) -> str:
    """Return what a log says of a run whose state has changed."""
    remark = _remark(state)
    return f"{state.job.name}: {state.status}" + (f" ({remark})" if remark else "")


def _progress(state: State) -> tuple[str, str]:
    history, epochs = state.job.folder.history(), state.job.recipe.epochs
    if not history:
        return "", ""
    epoch = f"{len(history)}/{epochs}"
    if state.status != "running":
        return epoch, ""
    each = statistics.median(one.seconds for one in history[-RECENT:])
    since = 0.0 if history[-1].time is None else max(0.0, time.time() - history[-1].time)
    return epoch, _duration((epochs - len(history)) * each - min(since, each))


def _remark(state: State) -> str:
    if state.status == "done":
        result = state.job.folder.result
        return "" if result is None else f"{result.test_error:.2f}%"
    if state.status == "failed":
        return state.failures[-1]
    again = f"attempt {len(state.failures) + 1}: " if state.failures else ""
    if state.status == "running":
        where = state.attempt.where if state.attempt is not None else ""
        return f"{again}{where}"
    return f"{again}{state.note}"


def _duration(seconds: float) -> str:
    """Return hours, minutes and seconds.

    >>> _duration(3725), _duration(65)
    ('1:02:05', '1:05')
    """
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
