"""Results as a table, a CSV that names the versions, and a plot."""

from __future__ import annotations

import csv
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from rich import box
from rich.table import Table

from coattend.bench.measure import Measurement
from coattend.version import __version__

COLUMNS = ("kind", "name", "ratio", "low", "high", "limit")


def table(measurements: Sequence[Measurement]) -> Table:
    """Every ratio with the middle half of its rounds, its limit, and whether it keeps it."""
    shown = Table(title="Ratios, medians of interleaved rounds", box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("ratio of")
    for heading in ("ratio", "middle half", "at most", ""):
        shown.add_column(heading, justify="right", no_wrap=True)
    for m in measurements:
        spread = "" if m.low == m.high else f"{m.low:.3f} - {m.high:.3f}"
        limit, verdict = ("", "") if m.limit is None else (f"{m.limit:.2f}", "ok" if m.ratio <= m.limit else "over")
        shown.add_row(f"{m.kind}: {m.name}", f"{m.ratio:.3f}", spread, limit, verdict)
    return shown


def versions() -> dict[str, str]:
    """What the figures depend on."""
    try:
        e2cnn = version("e2cnn")
    except PackageNotFoundError:
        e2cnn = "none"
    return {
        "coattend": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "e2cnn": e2cnn,
        "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "threads": str(torch.get_num_threads()),
    }


def write_csv(measurements: Sequence[Measurement], path: Path) -> None:
    """One line per ratio; every line names the versions."""
    names = versions()
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*COLUMNS, *names))
        for m in measurements:
            limit = "" if m.limit is None else f"{m.limit:g}"
            ratios = (f"{value:.4f}" for value in (m.ratio, m.low, m.high))
            writer.writerow((m.kind, m.name, *ratios, limit, *names.values()))


def plot(measurements: Sequence[Measurement], path: Path) -> None:
    """Left: what has a limit, as a fraction of it. Right: growth on doubly logarithmic axes."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

    figure = Figure(figsize=(12, 4.5), layout="constrained")
    bars, curves = figure.subplots(1, 2, width_ratios=(3, 2))
    limited = [m for m in measurements if m.limit is not None][::-1]
    labels = [f"{m.kind}: {m.name}" for m in limited]
    bars.barh(labels, [m.ratio / m.limit for m in limited if m.limit], color="#4477aa")
    bars.axvline(1.0, color="black", linewidth=1)
    bars.set_xlabel("measured ratio / largest allowed")
    for axis in ("order", "channels", "pixels", "batch"):
        grown = [m for m in measurements if m.kind == f"growth with {axis}"]
        if grown:
            start = float(grown[0].name)
            curves.loglog([float(m.name) / start for m in grown], [m.ratio for m in grown], "o-", label=axis)
    curves.loglog([1, 8], [1, 8], ":", color="black", label="linear")
    for ticks in (curves.xaxis, curves.yaxis):
        ticks.set_major_locator(FixedLocator([1, 2, 4, 8, 16]))
        ticks.set_major_formatter(ScalarFormatter())
        ticks.set_minor_locator(NullLocator())
    curves.set_xlabel("times as many")
    curves.set_ylabel("times the cost of attention")
    curves.legend()
    figure.savefig(path, dpi=120)
