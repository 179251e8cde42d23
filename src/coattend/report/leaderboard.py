"""The leaderboard: error against parameters and time, of every network trained by one protocol."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from coattend._files import write_atomically
from coattend.data.rotated_mnist import current_name
from coattend.models import create_model
from coattend.report.cells import against, pairs_of, seeds_of
from coattend.report.leaderboard_figure import Point, leaderboard_figure
from coattend.report.ledger import counterpart, made_of
from coattend.report.lines import markdown_table
from coattend.report.style import save
from coattend.train.entry import REFERENCE, TURNS, Entry, read_entries
from coattend.train.row import Row, interval, over_seeds
from coattend.train.run import Kind

COMPARED = "p4cnn:head=max"  # the network that all others are compared with
PICTURE = "assets/leaderboard"  # beside the page, without its suffix
HEADER = f"""# Leaderboard

`coattend leaderboard` writes this page from the files in `results/leaderboard`: a file for each row, a line for each
seed. Errors are test errors in percent after the last epoch of a training on all training and validation images
(recipe `strong`), with the same settings for all networks; no test image chooses anything. An error is the mean over
seeds with its 95% interval (Student). "Turned" is the error of the same weights averaged over {TURNS} turned copies of
each image (`coattend evaluate --turns {TURNS}`): it costs {TURNS} times as much, so compare it with other turned
errors only. Differences are paired over seeds, in percentage points, with a 95% interval; with a single seed, over the
test images. The counterpart of a network with attention or generated filters is the same network without them, which
has fewer parameters; one of equal size is wider instead. "Step" is the time of a training step relative to
{REFERENCE}, measured alternately on a CPU with batches of 128.

To add a row, register the network ([models.md](models.md)), run the command of any row with its name, and send a pull
request with the new file in `results/leaderboard` and this page. Reading a file verifies that its errors agree with the
images that it lists as misclassified, that the last epoch counts, and that its command is that of the run.
"""
COLUMNS = ("network", "changed", "error", f"turned x{TURNS}", "turned - error", f"against {COMPARED}",
           "against its counterpart", "against one of equal size", "seeds", "parameters", "step", "hours",
           "command")  # fmt: skip
EQUAL_SIZE: Mapping[str, str] = {  # wider networks without attention or generated filters
    "p4cnn:attention=gate,head=max": "p4cnn:head=max,width=11",
    "e4cnn": "e4cnn:width=26,generated=false",
}
PLANNED: Mapping[str, int] = {  # rows that are to be run, with the number of seeds
    **dict.fromkeys(
        (
            COMPARED,
            "p4cnn:group=C8,kernel=5,filters=steerable,head=max,width=7",
            "p4cnn:group=C8,width=6,head=max",
            "e4cnn",
            "e4cnn:generated=false",
            "e4cnn:width=26,generated=false",
            "p4cnn:attention=gate,head=max",
            "p4cnn:head=max,width=11",
            "a_p4cnn:attention=output,head=max",
            "a_p4cnn:head=max",
            "p4cnn",
            "z2cnn",
            "p4cnn:head=max,width=20",
            "e4cnn:group=C8,filters=steerable,width=20,generated=false",
        ),
        5,
    ),
    "sfcnn": 3,
}
DATA, RECIPE = "rotated-mnist", "strong"


def write_leaderboard(board: Path, page: Path) -> None:
    """Write the page and its picture from the files of a leaderboard."""
    rows = read_entries(board)
    if rows:
        picture = page.parent / PICTURE
        picture.parent.mkdir(parents=True, exist_ok=True)
        save(leaderboard_figure(points(rows)), picture, (".png",))
    write_atomically(page, leaderboard_text(board).encode())


def leaderboard_text(board: Path) -> str:
    """Return the page; ``reading.md`` in the folder is its introduction."""
    rows = read_entries(board)
    reading = board / "reading.md"
    introduction = [reading.read_text()] if reading.is_file() else []
    records = [entry.record for entries in rows.values() for entry in entries]
    picture = [f"![Error against parameters, and against the time of a step]({PICTURE}.png)\n"] if rows else []
    parts = [HEADER, *made_of(records), *introduction, *picture, *_tables(rows), *_rows_to_do(rows)]
    return "\n".join(parts)


def _tables(rows: Mapping[Kind, Sequence[Entry]]) -> list[str]:
    """One table per dataset, the lowest error first."""
    tables: dict[str, list[list[str]]] = {}
    by_kind = {kind: Row(tuple(entry.record for entry in entries)) for kind, entries in rows.items()}
    for kind in sorted(rows, key=lambda kind: (kind.data, kind.provenance, by_kind[kind].mean, kind.model)):
        title = f"## {kind.data} ({kind.provenance})"
        tables.setdefault(title, []).append(_line(by_kind[kind], rows[kind], by_kind))
    return [f"{title}\n\n{markdown_table(COLUMNS, lines)}" for title, lines in tables.items()]


def _line(row: Row, entries: Sequence[Entry], rows: Mapping[Kind, Row]) -> list[str]:
    kind = row.kind
    compared = Kind(COMPARED, kind.recipe, kind.settings, kind.data, kind.provenance)
    turned = [entry.turned_error for entry in entries]
    deltas = [t - e for t, e in zip(turned, row.errors, strict=True)]
    hours = sum(record.result.seconds for record in row.records) / 3600
    return [
        kind.model,
        ", ".join(kind.settings),
        mean_with_interval(row.errors),
        mean_with_interval(turned),
        str(over_seeds(deltas)) if len(deltas) > 1 else f"{deltas[0]:+.2f}",
        against(pairs_of(row, rows.get(compared))),
        against(pairs_of(row, rows.get(counterpart(kind)))) if counterpart(kind) != compared else "the same",
        against(pairs_of(row, rows.get(replace(kind, model=EQUAL_SIZE.get(kind.model, ""))))),
        str(len(row.seeds)),
        f"{row.parameters:,}",
        f"{statistics.median(entry.step for entry in entries):.2f}",
        f"{hours:.1f}",
        f"`{command(kind, seeds_of(row))}`",
    ]


def _rows_to_do(rows: Mapping[Kind, Sequence[Entry]]) -> list[str]:
    """The rows, and the seeds of rows, that are planned and have not been run, with their commands."""
    lines = []
    for model, number in PLANNED.items():
        started = [kind for kind in rows if (kind.model, kind.recipe) == (model, RECIPE)]
        kind = max(started, key=lambda kind: len(rows[kind]), default=Kind(model, RECIPE, (), DATA, ""))
        done = {entry.record.result.seed for entry in rows.get(kind, ())}
        seeds = ",".join(str(seed) for seed in range(number) if seed not in done)
        if seeds:
            lines.append([model, seeds, f"{parameters(model):,}", f"`{command(kind, seeds)}`"])
    heading = "## Not run\n\n"
    return [heading + markdown_table(("network", "seeds", "parameters", "command"), lines)] if lines else []


def command(kind: Kind, seeds: str) -> str:
    """Return the command that trains a row, and writes its file and the page."""
    words = ["coattend", "leaderboard", kind.model, "--seeds", seeds]
    words += ["--recipe", kind.recipe] if kind.recipe != RECIPE else []
    data = current_name(kind.data, kind.provenance)
    words += ["--data", data] if data != DATA else []
    words += [word for setting in kind.settings for word in ("--set", setting)]
    return shlex.join([*words, "--board", "results/leaderboard", "--page", "docs/leaderboard.md"])


def points(rows: Mapping[Kind, Sequence[Entry]]) -> list[Point]:
    """Return what the picture shows of every row, named without the settings that all rows have."""
    shared = set.intersection(*(set(kind.settings) for kind in rows)) if rows else set()
    drawn = []
    for kind, entries in rows.items():
        row = Row(tuple(entry.record for entry in entries))
        turned = statistics.fmean(entry.turned_error for entry in entries)
        name = "+".join((kind.model, *(setting for setting in kind.settings if setting not in shared)))
        step = statistics.median(entry.step for entry in entries)
        drawn.append(Point(name, row.parameters, step, row.mean, interval(row.errors), turned))
    return sorted(drawn, key=lambda point: point.error)


def mean_with_interval(values: Sequence[float]) -> str:
    """Return the mean and its 95% interval, which one value does not have.

    >>> mean_with_interval([1.0, 1.2, 1.1])
    '1.10 [0.85, 1.35]'
    """
    mean, limits = statistics.fmean(values), interval(values)
    return f"{mean:.2f}" if limits is None else f"{mean:.2f} [{limits[0]:.2f}, {limits[1]:.2f}]"


@lru_cache
def parameters(model: str) -> int:
    """Return the number of parameters of a network."""
    return sum(p.numel() for p in create_model(model).parameters())
