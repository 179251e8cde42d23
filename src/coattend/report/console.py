"""What verbs print as tables."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from coattend._terminal import console
from coattend.data import Available
from coattend.groups import FiniteGroup
from coattend.models import ModelEntry, create_model, list_models, model_entry
from coattend.report.contributions import short_name
from coattend.report.views import pose_name

if TYPE_CHECKING:
    from coattend._timing import Measurement
    from coattend.export import CertificateCheck
    from coattend.report.check import Check
    from coattend.report.ledger import Reproduction
    from coattend.train import Comparison, Recipe
    from coattend.train.advice import Advice
    from coattend.train.restriction import Restriction

POSES_PER_TABLE = 8  # poses in one table, which fits a terminal of 80 columns


def models_table(pattern: str) -> Group:
    """Return every network that matches, its parameters beside the published count, and a note for each difference."""
    names = list_models(pattern)
    if not names:
        raise ValueError(f"no model matches {pattern!r}; `coattend models` without a pattern lists all.")
    table = Table(
        title="Networks, published figures from Table 1 (Romero & Hoogendoorn, ICLR 2020)",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
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
        table.add_row(name, entry.group, f"{count:,}", entry.published_count or "-", _error(entry), mark)
    legend = "error: test error as published, in parentheses the authors' own run of the network"
    return Group(table, Text(legend), *(Text(f"{number}: {note}") for number, note in enumerate(notes, start=1)))


def check_table(check: Check) -> Group:
    """Return the certificate beside what was measured, and the equivariance of the network, for ``crop=False``."""
    parts: list[RenderableType] = []
    if check.certificate is not None:
        parts.append(_certificate_table(check.certificate))
    if check.network is not None:
        network = check.network
        height, width = network.image_size
        parts += [
            _long_line(f"{network.model} at {height} x {width}, {network.group.name}, float64"),
            _equivariance_table(network.diagnosis.errors, network.group),
        ]
        if network.exactness is not None:
            parts.append(_long_line(network.exactness))
        parts.append(Text(str(network.diagnosis)))
    return Group(*parts)


def _long_line(line: str) -> Text:
    """Return a line that is not broken; to be printed with ``crop=False``."""
    return Text(line, no_wrap=True, overflow="ignore")


def _certificate_table(checked: CertificateCheck) -> Table:
    certificate = checked.certificate
    title = f"{checked.path}: {certificate.model} over {certificate.acting_group.name}, coattend {certificate.version}"
    table = Table(title=title, caption=checked.note or None, box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("property", no_wrap=True)
    for heading in ("certified", "measured", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    for claim in checked.claims:
        table.add_row(claim.what, claim.certified, claim.measured, "agrees" if claim.agrees else "DIFFERS")
    return table


def _equivariance_table(errors: dict[int, float], group: FiniteGroup) -> Table:
    table = Table()
    table.add_column("element", no_wrap=True)
    table.add_column("action", no_wrap=True)
    table.add_column("relative error", justify="right", no_wrap=True)
    for g, error in errors.items():
        table.add_row(str(g), group.describe(g), f"{error:.1e}")
    return table


def comparison_table(comparison: Comparison) -> Group:
    """Return mean error, spread, and the paired difference against the first network."""
    seeds = ", ".join(map(str, comparison.seeds))
    table = Table(
        title=f"Test error on {comparison.data}, recipe {comparison.recipe}, seed {seeds}",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("network", overflow="fold")
    for heading in ("parameters", "s/epoch", "error %", "against the first [95%]"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in comparison.rows:
        error = f"{row.mean:.2f}" + ("" if row.spread is None else f" ± {row.spread:.2f}")
        delta = row.against_first
        against = ""
        if delta is not None:
            against = f"{delta.mean:+.2f} [{delta.low:+.2f}, {delta.high:+.2f}]\n{delta.verdict}"
        name = folded(row.model, console().width - 61)  # what the other columns leave
        table.add_row(name, f"{row.parameters:,}", f"{row.seconds_per_epoch:.1f}", error, against)
    methods = {row.against_first.method for row in comparison.rows if row.against_first is not None}
    protocols = {"valid": "epoch chosen on the validation split", "last": "last epoch"}
    chosen = " and ".join(protocols[p] for p in sorted({row.protocol for row in comparison.rows}))
    lines = [
        f"{chosen}; data: {comparison.provenance}",
        *(f"differences in percentage points, {m}" for m in sorted(methods)),
    ]
    return Group(table, *(Text(line) for line in lines))


def reproduction_table(rows: Sequence[Reproduction]) -> Table:
    """Return rows of Table 1: test errors as published, from the ledger of this library, and as trained here."""
    table = Table(title="Test error in percent, recipes of the paper", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("network", no_wrap=True)
    for heading in ("published", "shipped", "here", "here - published"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        difference = f"{statistics.fmean(row.here) - row.published:+.2f}" if row.here else ""
        table.add_row(row.model, f"{row.published:g}", _mean(row.shipped), _mean(row.here), difference)
    return table


def _mean(errors: Sequence[float]) -> str:
    if not errors:
        return "not run"
    spread = f" ± {statistics.stdev(errors):.2f}" if len(errors) > 1 else ""
    return f"{statistics.fmean(errors):.2f}{spread}"


def folded(model: str, width: int) -> str:
    """Break a network's name after a colon or comma where it is wider than ``width``.

    >>> folded("a_p4cnn:attention=output", 22)
    'a_p4cnn:\\nattention=output'
    """
    lines = [""]
    for piece in re.findall(r"[^:,]+[:,]?", model):
        if lines[-1] and len(lines[-1] + piece) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)


def recipes_table(recipes: Sequence[Recipe]) -> Table:
    """Return every field that ``--set`` changes, with its value in each recipe."""
    table = Table(title="Fields of the recipes, for --set FIELD=VALUE", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("field", no_wrap=True)
    for recipe in recipes:
        table.add_column(recipe.name, overflow="fold")
    values = [recipe.to_dict() for recipe in recipes]
    for field in values[0]:
        if field not in ("name", "settings"):
            table.add_row(field, *(_setting(value[field]) for value in values))
    return table


def _setting(value: object) -> str:
    """Return a value in the form that ``--set`` takes."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value)) or "none"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def data_table(sets: list[Available]) -> Group:
    """Return every named dataset, its size, and where it is."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("name", "train / valid / test", "image", "state"):
        table.add_column(heading, no_wrap=heading != "state")
    for entry in sets:
        sizes = "" if entry.sizes is None else " / ".join(f"{n:,}" for n in entry.sizes)
        state = entry.provenance if entry.is_fetched else f"coattend data fetch {entry.name}"
        table.add_row(entry.name, sizes, " x ".join(map(str, entry.image_shape)), state)
    return Group(table, *(Text(f"{e.name}: {e.where}") for e in sets if e.where is not None))


def _error(entry: ModelEntry) -> str:
    if entry.error is None:
        return "-"
    spread = "" if entry.spread is None else f" ± {entry.spread:g}"
    return f"{entry.error:g}{spread}" + ("" if entry.own_error is None else f" ({entry.own_error:g})")


def measurement_table(measurements: Sequence[Measurement]) -> Table:
    """Return every ratio with its quartiles and its limit, under a heading per kind; "over" marks a missed limit."""
    table = Table(title="Ratios, medians of interleaved rounds", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("ratio of")
    for heading in ("ratio", "middle half", "at most", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    for kind, lines in groupby(measurements, key=lambda m: m.kind):
        table.add_section()
        table.add_row(kind)
        for m in lines:
            spread = "" if m.low == m.high else f"{m.low:.3f} - {m.high:.3f}"
            limit, verdict = ("", "") if m.limit is None else (f"{m.limit:.2f}", "over" if m.is_over else "ok")
            table.add_row(f"  {m.name}", f"{m.ratio:.3f}", spread, limit, verdict)
    return table


def restriction_table(restriction: Restriction) -> Group:
    """Return the contributions by layer, and the figures of every stage of a restriction."""
    poses = list(restriction.group.elements)
    starts = range(0, len(poses), POSES_PER_TABLE)
    tables = [_contributions_table(restriction, poses[start : start + POSES_PER_TABLE]) for start in starts]
    return Group(*tables, _stages_table(restriction), Text(f"wrote {restriction.path}"))


def _contributions_table(restriction: Restriction, poses: Sequence[int]) -> Table:
    title = "Contribution of each relative pose; removed ones in parentheses (m: mirrored)"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    table.add_column("layer", no_wrap=True)
    for t in poses:
        table.add_column(pose_name(restriction.group, t), justify="right", no_wrap=True)
    for name, after in restriction.after.items():
        measured = dict(zip(restriction.before[name], restriction.contributions[name].tolist(), strict=True))
        cells = {t: f"{value:.3f} " if t in after else f"({value:.3f})" for t, value in measured.items()}
        table.add_row(short_name(name), *(cells.get(t, "– ") for t in poses))
    return table


def _stages_table(restriction: Restriction) -> Table:
    stages, first = restriction.stages, restriction.stages[0]
    table = Table(title="Before and after", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    for stage in stages:
        table.add_column(stage.name, justify="right", no_wrap=True)
    table.add_row("test error %", *(f"{stage.error:.2f}" for stage in stages))
    table.add_row("multiply-adds", *(_count(stage.multiply_adds, first.multiply_adds) for stage in stages))
    table.add_row("parameters", *(_count(stage.parameters, first.parameters) for stage in stages))
    table.add_row("time", *(f"{stage.time:.2f}" for stage in stages))
    table.add_section()
    for g in first.equivariance:
        errors = (f"{stage.equivariance[g]:.1e}" for stage in stages)
        table.add_row(f"equivariance, {restriction.group.describe(g)}", *errors)
    return table


def advice_table(advice: Advice) -> Table:
    """Return how well the probe recognizes images in each pose."""
    table = Table(title=f"{advice.data}: {advice.images:,} test images in other poses", box=box.SIMPLE_HEAD)
    for name in ("pose", "recognized %", "skill [95%]", "symmetry"):
        table.add_column(name, justify="left" if name in ("pose", "symmetry") else "right")
    for pose in advice.poses:
        verdict = ("yes" if pose.holds else "no") + ("" if pose.is_sure else ", not sure")
        skill = f"{pose.skill:.2f} [{pose.low:.2f}, {pose.high:.2f}]"
        table.add_row(pose.element, f"{100 * pose.accuracy:.1f}", skill, verdict)
    if advice.group is not None:
        table.add_row("any turn, least skill", "", f"{min(advice.envelope.values()):.2f}", f"up to ±{advice.reach}°")
    return table


def _count(count: int, whole: int) -> str:
    return f"{count / 1e6:.2f} M ({count / whole:.2f})" if count >= 1e6 else f"{count:,} ({count / whole:.2f})"
