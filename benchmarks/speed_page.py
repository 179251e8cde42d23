"""The tables of docs/speed.md, from a CSV file of ``benchmarks.speed``.

    python -m benchmarks.speed_page [--csv results/speed.csv] [--page docs/speed.md]

Replaces what is between the markers of the page. No figure of these tables is typed by hand.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import tyro

from coattend._timing import Measurement
from coattend.bench import read_csv

GROWTH = "growth with "
BY_ORDER = "attention / convolution, by order"


def write_page(csv: Path = Path("results/speed.csv"), page: Path = Path("docs/speed.md")) -> None:
    """Write the tables of a page from the figures of a file.

    Args:
        csv: The file with the figures.
        page: The page, which has the markers.
    """
    page.write_text(with_tables(page.read_text(encoding="utf-8"), csv), encoding="utf-8")


def with_tables(text: str, csv: Path) -> str:
    """Return the text of a page with the tables of a file between its markers."""
    measurements, versions = read_csv(csv)
    ratios = [m for m in measurements if not m.kind.startswith(GROWTH) and m.kind != BY_ORDER]
    tables = {
        "ratios": f"{_ratios(ratios)}\n\n{_summary(ratios, versions)}",
        "growth": _growth([m for m in measurements if m.kind.startswith(GROWTH)]),
        "orders": _orders([m for m in measurements if m.kind == BY_ORDER]),
    }
    for name, table in tables.items():
        parts = re.split(rf"(<!-- begin {name}[^>]*-->\n)(?:.*?)(<!-- end {name} -->)", text, flags=re.DOTALL)
        if len(parts) != 4:
            raise ValueError(f"a page expects <!-- begin {name} --> and <!-- end {name} --> once, got another number.")
        before, begin, end, after = parts
        text = f"{before}{begin}{table}\n{end}{after}"
    return text


def _ratios(measurements: Sequence[Measurement]) -> str:
    lines = ["| ratio of | ratio | middle half | at most |", "|---|---|---|---|"]
    for kind, group in groupby(measurements, key=lambda m: m.kind):
        lines.append(f"| *{kind}* | | | |")
        for m in group:
            spread = "" if m.low == m.high else f"{m.low:.2f} to {m.high:.2f}"
            limit = "" if m.limit is None else f"{m.limit:.2f}"
            lines.append(f"| {m.name} | {_marked(m)} | {spread} | {limit} |")
    return "\n".join(lines)


def _marked(m: Measurement) -> str:
    """Return the ratio, in bold with the digits that show it if it is over its limit."""
    if not m.is_over:
        return f"{m.ratio:.2f}"
    assert m.limit is not None
    return f"**{m.ratio:.{2 if round(m.ratio, 2) > m.limit else 4}f}**"


def _summary(measurements: Sequence[Measurement], versions: dict[str, str]) -> str:
    limited, over = [m for m in measurements if m.limit is not None], [m for m in measurements if m.is_over]
    programs = ", ".join(f"{name} {versions[name]}" for name in ("coattend", "torch", "python", "e2cnn"))
    missed = f"Missed limits, in bold: {len(over)} of {len(limited)}." if over else f"All {len(limited)} limits hold."
    return f"{missed} Measured with {programs}\non {versions['processor']}, {versions['threads']} threads."


def _growth(measurements: Sequence[Measurement]) -> str:
    lines = ["| larger | times as large: times the cost |", "|---|---|"]
    for kind, group in groupby(measurements, key=lambda m: m.kind):
        cases = list(group)
        start = int(cases[0].name)
        cells = ", ".join(f"{int(m.name) // start}: {m.ratio:.2f}" for m in cases[1:])
        lines.append(f"| {kind.removeprefix(GROWTH)}, from {start} | {cells} |")
    return "\n".join(lines)


def _orders(measurements: Sequence[Measurement]) -> str:
    heading = " | ".join(m.name for m in measurements)
    cells = " | ".join(f"{m.ratio:.2f}" for m in measurements)
    return f"| order | {heading} |\n|---{'|---' * len(measurements)}|\n| attention / convolution | {cells} |"


if __name__ == "__main__":
    tyro.cli(write_page, description=__doc__)
