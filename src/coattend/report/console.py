"""Tables for the terminal."""

from __future__ import annotations

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from coattend.groups import FiniteGroup
from coattend.models import ModelEntry, create_model, list_models, model_entry


def models_table(pattern: str) -> Group:
    """Every network that matches, our parameter count beside the published one, and a note for each difference."""
    names = list_models(pattern)
    if not names:
        raise ValueError(f"no model matches {pattern!r}; `coattend models` without a pattern lists all.")
    table = Table(title="Networks of Table 1 (Romero & Hoogendoorn, ICLR 2020)", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("name", "group"):
        table.add_column(heading, no_wrap=True)
    for heading in ("parameters", "published", "error % (own)", "note"):
        table.add_column(heading, justify="right", no_wrap=True)
    notes: list[str] = []
    for name in names:
        entry = model_entry(name)
        if entry.note and entry.note not in notes:
            notes.append(entry.note)
        mark = str(notes.index(entry.note) + 1) if entry.note else ""
        count = sum(p.numel() for p in create_model(name).parameters())
        if name != names[0] and entry.dataset != model_entry(names[names.index(name) - 1]).dataset:
            table.add_section()
        table.add_row(name, entry.group, f"{count:,}", entry.published_count, _error(entry), mark)
    legend = "error: test error as published, in parentheses the authors' own run of the network"
    return Group(table, Text(legend), *(Text(f"{number}: {note}") for number, note in enumerate(notes, start=1)))


def equivariance_table(errors: dict[int, float], group: FiniteGroup, title: str) -> Table:
    """One line per element."""
    table = Table(title=title)
    table.add_column("element", no_wrap=True)
    table.add_column("what it does", no_wrap=True)
    table.add_column("relative error", justify="right", no_wrap=True)
    for g, error in errors.items():
        table.add_row(str(g), group.describe(g), f"{error:.1e}")
    return table


def _error(entry: ModelEntry) -> str:
    spread = "" if entry.spread is None else f" ± {entry.spread:g}"
    return f"{entry.error:g}{spread}" + ("" if entry.own_error is None else f" ({entry.own_error:g})")
