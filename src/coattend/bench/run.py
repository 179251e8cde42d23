"""Measure every line, print the table, write the figures."""

from __future__ import annotations

from pathlib import Path

import torch

from coattend._files import check_target
from coattend._terminal import console
from coattend.bench.growth import growth
from coattend.bench.lines import Setting, measured_lines
from coattend.bench.results import plot, table, write_csv


def run_benchmarks(
    rounds: int = 30,
    compiled: bool = True,
    with_growth: bool = True,
    csv: Path | None = None,
    plot_to: Path | None = None,
) -> None:
    """Ratios measured in one run on two threads; each is printed as soon as it is known."""
    for path in (csv, plot_to):
        if path is not None:
            check_target(path, overwrite=True)
    terminal = console()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    measurements = []
    for measurement in measured_lines(Setting(rounds=rounds, compiled=compiled)):
        measurements.append(measurement)
        terminal.print(f"{measurement.kind}: {measurement.name} {measurement.ratio:.3f}", style="dim")
    if with_growth:
        measurements += growth(rounds=rounds)
    terminal.print(table(measurements))
    if csv is not None:
        write_csv(measurements, csv)
    if plot_to is not None:
        plot(measurements, plot_to)
