"""The picture of the leaderboard: error against parameters, and against the time of a training step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coattend.report.style import COLOURS, INK, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, PLOT = 9.0, 3.2  # inches; the legend comes below
MARKERS = ("o", "s", "^", "D", "v", "P")
ERRORS = (1, 1.2, 1.5, 2, 3, 4, 5, 7)  # ticks, times powers of 10
SIZES = (1, 2, 5)


@dataclass(frozen=True)
class Point:
    """A row of the leaderboard: mean errors in percent, with the 95% interval over seeds if there are several."""

    name: str
    parameters: int
    step: float
    error: float
    interval: tuple[float, float] | None
    turned: float


def leaderboard_figure(points: Sequence[Point]) -> Figure:
    """Draw every row twice, with its interval; a small ring is its error averaged over turned copies."""
    below = 0.75 + 0.17 * -(-len(points) // 2)
    height = PLOT + below + 0.35
    with drawing(WIDTH, height) as figure:
        left = figure.add_axes((0.07, below / height, 0.42, PLOT / height))
        right = figure.add_axes((0.56, below / height, 0.42, PLOT / height))
        _draw(left, points, [float(point.parameters) for point in points], "parameters")
        _draw(right, points, [point.step for point in points], "training step, relative to p4cnn")
        left.set_title("test error in percent; ring: averaged over turned copies", loc="left")
        handles, names = left.get_legend_handles_labels()
        figure.legend(handles, names, loc="lower left", fontsize=8, ncols=2)
    return figure


def _draw(axes: Axes, points: Sequence[Point], positions: Sequence[float], label: str) -> None:
    from matplotlib.ticker import NullFormatter

    for number, (point, x) in enumerate(zip(points, positions, strict=True)):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number // len(COLOURS) % len(MARKERS)]
        if point.interval is not None:
            axes.plot([x, x], point.interval, color=colour, linewidth=1.2)
        axes.plot(x, point.error, linestyle="", marker=marker, color=colour, label=point.name)
        axes.plot(x, point.turned, linestyle="", marker="o", markersize=4, markerfacecolor="none", color=colour)
    axes.set_xscale("log")
    axes.set_yscale("log")  # the differences of interest are fractions of an error
    errors = _round_numbers(*axes.get_ylim(), ERRORS)
    axes.set_yticks(errors, [f"{tick:g}" for tick in errors])
    axes.set_xlabel(label)
    axes.grid(axis="y")
    axes.tick_params(colors=INK)
    axes.xaxis.set_minor_formatter(NullFormatter())
    low, high = min(positions), max(positions)
    margin = max(1.05, (high / low) ** 0.1)
    low, high = low / margin, high * margin
    axes.set_xlim(low, high)
    ticks = _round_numbers(low, high, SIZES) or positions[:1]
    axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
    axes.minorticks_off()


def _round_numbers(low: float, high: float, digits: Sequence[float]) -> list[float]:
    """Return the numbers between two others that are digits times a power of ten."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    numbers = [digit * 10.0**power for power in powers for digit in digits]
    return [number for number in numbers if low <= number <= high]
