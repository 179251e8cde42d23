"""The section of the ledger on networks over groups with other angles than quarter turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from coattend.report.cells import against, against_at_the_end, command_of, mean_errors, pairs_of
from coattend.report.lines import markdown_table
from coattend.train.row import Row
from coattend.train.run import Kind

INTRODUCTION = """## Filters

Networks over groups with other angles than quarter turns, by the way in which their filters turn;
[conventions.md](conventions.md) compares single layers. Each is compared with the same network over its usual group and
with its usual width and kernel, which is the first row; runs of different arithmetic are not compared.
"""
COLUMNS = ("network", "parameters", "last, by seed", "last", "against the first", "valid", "against the first",
           "s / epoch", "command")  # fmt: skip
FILTER_OPTIONS = ("group", "width", "kernel", "filters")


def is_of_filters(kind: Kind) -> bool:
    """Return whether a network is in this section: one without attention that names its filters."""
    name, options = _name_and_options(kind)
    return "filters" in options and "attention" not in options and not name.startswith("a_")


def usual_kind(kind: Kind) -> Kind:
    """Return the kind of the same network over its usual group, with its usual width and kernel.

    >>> usual_kind(Kind("p4cnn:group=C8,width=7,filters=free,head=max", "house", (), "mini", "")).model
    'p4cnn:head=max'
    """
    name, options = _name_and_options(kind)
    rest = ",".join(f"{key}={value}" for key, value in options.items() if key not in FILTER_OPTIONS)
    return replace(kind, model=f"{name}:{rest}" if rest else name)


def filter_section(rows: Mapping[Kind, Row]) -> list[str]:
    """Return the introduction and a table per recipe, dataset and network; nothing if no network names its filters."""
    tables: dict[Kind, list[Row]] = {}
    for kind in sorted(rows, key=lambda kind: (kind.recipe_name, kind.data, kind.provenance, kind.model)):
        if is_of_filters(kind):
            tables.setdefault(usual_kind(kind), []).append(rows[kind])
    texts = [_table(first, rows.get(first), others) for first, others in tables.items()]
    return [INTRODUCTION, *texts] if texts else []


def _table(kind: Kind, first: Row | None, others: list[Row]) -> str:
    title = f"### {kind.model}, recipe `{kind.recipe_name}` on {kind.data} ({kind.provenance})"
    lines = [_line(row, first) for row in ([] if first is None else [first]) + others]
    return f"{title}\n\n{markdown_table(COLUMNS, lines)}"


def _line(row: Row, first: Row | None) -> list[str]:
    pairs = pairs_of(row, first)
    valid, last = mean_errors(row, "valid", "last")
    return [
        row.model,
        f"{row.parameters:,}",
        ", ".join(f"{record.result.error.last:.2f}" for record in row.records),
        last,
        against_at_the_end(pairs),
        valid,
        against(pairs),
        f"{row.seconds_per_epoch:.0f}",
        command_of(row),
    ]


def _name_and_options(kind: Kind) -> tuple[str, dict[str, str]]:
    name, _, options = kind.model.partition(":")
    pairs = (option.partition("=") for option in options.split(",") if option)
    return name, {key: value for key, _, value in pairs}
