"""Measurements in a CSV file."""

from __future__ import annotations

import csv
import platform
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch

from coattend._timing import Measurement
from coattend.version import __version__

FIGURES = ("kind", "name", "ratio", "low", "high", "limit")


def write_csv(measurements: Sequence[Measurement], path: Path) -> None:
    """Write a row per ratio; every row names the versions and the processor."""
    versions = {
        "coattend": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "e2cnn": version("e2cnn") if find_spec("e2cnn") else "none",
        "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "threads": str(torch.get_num_threads()),
    }
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*FIGURES, *versions))
        for m in measurements:
            limit = "" if m.limit is None else f"{m.limit:g}"
            ratios = (f"{value:.4f}" for value in (m.ratio, m.low, m.high))
            writer.writerow((m.kind, m.name, *ratios, limit, *versions.values()))


def read_csv(path: Path) -> tuple[list[Measurement], dict[str, str]]:
    """Return the measurements of a file, and the versions and the processor of its first row."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    measurements = [
        Measurement(
            row["kind"],
            row["name"],
            float(row["ratio"]),
            float(row["low"]),
            float(row["high"]),
            float(row["limit"]) if row["limit"] else None,
        )
        for row in rows
    ]
    return measurements, {key: value for key, value in rows[0].items() if key not in FIGURES}
