"""A restriction for the terminal: what was kept, and the network before and after."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from coattend.report.views import pose_name
from coattend.restrict.picture import short_name
from coattend.restrict.program import Look, Restriction

BESIDE = 8  # poses in one table, which fits a terminal of 80 columns


def restriction_table(restriction: Restriction) -> Group:
    """Contributions layer by layer; then error, operations, time, parameters and the error of every element."""
    poses = list(restriction.group.elements)
    blocks = [_kept(restriction, poses[start : start + BESIDE]) for start in range(0, len(poses), BESIDE)]
    return Group(*blocks, _stages(restriction), Text(f"wrote {restriction.written}"))


def _kept(restriction: Restriction, poses: Sequence[int]) -> Table:
    title = "What each relative pose contributes; in parentheses what was cut (m: mirrored)"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    table.add_column("layer", no_wrap=True)
    for t in poses:
        table.add_column(pose_name(restriction.group, t), justify="right", no_wrap=True)
    for name, kept in restriction.kept.items():
        measured = dict(zip(restriction.before[name], restriction.contributions[name].tolist(), strict=True))
        cells = {t: f"{value:.3f} " if t in kept else f"({value:.3f})" for t, value in measured.items()}
        table.add_row(short_name(name), *(cells.get(t, "– ") for t in poses))
    return table


def _stages(restriction: Restriction) -> Table:
    looks = restriction.looks
    table = Table(title="Before and after", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    for look in looks:
        table.add_column(look.name, justify="right", no_wrap=True)
    first = looks[0]
    table.add_row("test error %", *(f"{look.error:.2f}" for look in looks))
    table.add_row("multiply-adds", *(_counted(look.operations, first.operations) for look in looks))
    table.add_row("parameters", *(_counted(look.parameters, first.parameters) for look in looks))
    table.add_row("time", *(f"{look.time:.2f}" for look in looks))
    table.add_section()
    for g in first.equivariance:
        table.add_row(f"equivariance, {restriction.group.describe(g)}", *(_error(look, g) for look in looks))
    return table


def _counted(count: int, whole: int) -> str:
    return f"{count / 1e6:.2f} M ({count / whole:.2f})" if count >= 1e6 else f"{count:,} ({count / whole:.2f})"


def _error(look: Look, g: int) -> str:
    return f"{look.equivariance[g]:.1e}"
