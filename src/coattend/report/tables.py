"""The tables of a report: every number as the text that the page shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coattend.groups import FiniteGroup
from coattend.report.envelope import Envelope
from coattend.report.runs import Contest, Contestant, ReportedRun
from coattend.report.views import pose_name
from coattend.train.recipe import FIELDS

PROTOCOLS = {"valid": "of the epoch chosen on the validation images", "last": "of the last epoch"}
ERROR_COLUMNS = (
    ("mean", "error, %"),
    ("difference", "against the first"),
    ("interval", "95% interval"),
    ("verdict", "verdict"),
    ("parameters", "parameters"),
    ("seconds", "s / epoch"),
    ("seeds", "number of seeds"),
    ("errors", "error by seed, %"),
)
ANGLE_COLUMNS = (("images", "images"), ("least", "least, %"), ("mean", "mean, %"), ("most", "most, %"))
MOST_CLASSES = 20
SHORT = 3  # characters of a class name that fit above a column
WORST = 3


@dataclass(frozen=True)
class ErrorLine:
    """One network; empty texts where it is unfinished or the first of its table."""

    model: str
    parameters: str
    seeds: str
    mean: str = "unfinished"
    errors: str = ""
    seconds: str = ""
    difference: str = ""
    interval: str = ""
    verdict: str = ""


@dataclass(frozen=True)
class ErrorTable:
    """The test errors of networks that were trained by one recipe on the same data."""

    data: str
    recipe: str
    lines: tuple[ErrorLine, ...]
    explanation: str


def error_table(contest: Contest) -> ErrorTable:
    """Return the error of every network, its difference from the first, and how certain that is."""
    rows = [contestant.row for contestant in contest.contestants if contestant.row is not None]
    protocols = " and ".join(PROTOCOLS[p] for p in sorted({row.protocol for row in rows}))
    methods = sorted({row.against_first.method for row in rows if row.against_first is not None})
    explanation = f"Test error {protocols}. " if rows else "No run is finished yet. "
    if methods:
        explanation += (
            f"Differences in percentage points against {contest.contestants[0].model}: {'; '.join(methods)}. "
        )
    if any("bootstrap" in method for method in methods):
        explanation += "An interval from one seed does not contain the spread over seeds. "
    explanation += f"Data: {contest.provenance}."
    return ErrorTable(contest.data, contest.recipe, tuple(map(_error_line, contest.contestants)), explanation)


def _error_line(contestant: Contestant) -> ErrorLine:
    finished = [run.seed for run in contestant.runs if run.result is not None]
    parameters, seeds = f"{contestant.runs[0].run.parameters:,}", str(len(finished))
    row = contestant.row
    if row is None:
        return ErrorLine(contestant.model, parameters, seeds)
    spread = "" if row.spread is None else f" ± {row.spread:.2f}"
    delta = row.against_first
    return ErrorLine(
        contestant.model,
        parameters,
        seeds,
        mean=f"{row.mean:.2f}{spread}",
        errors=", ".join(f"{error:.2f} (seed {seed})" for seed, error in zip(finished, row.errors, strict=True)),
        seconds=f"{row.seconds_per_epoch:.1f}",
        difference="" if delta is None else f"{delta.mean:+.2f}",
        interval="" if delta is None else f"{delta.low:+.2f} to {delta.high:+.2f}",
        verdict="" if delta is None else delta.verdict,
    )


@dataclass(frozen=True)
class ConfusionCell:
    """How many images of one class were classified as another, and their share of the class."""

    count: int
    share: float
    right: bool


@dataclass(frozen=True)
class ConfusionRow:
    """One true class; ``number`` heads its column where names are too long for that."""

    name: str
    number: str
    cells: tuple[ConfusionCell, ...]


@dataclass(frozen=True)
class ConfusionMatrix:
    """True against predicted classes; no rows if there are too many classes to show, ``worst`` in any case."""

    model: str
    rows: tuple[ConfusionRow, ...]
    worst: str


def confusion_matrix(
    model: str, predictions: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]], classes: Sequence[str]
) -> ConfusionMatrix:
    """Count true and predicted classes over all finished seeds."""
    count = len(classes)
    table = np.zeros((count, count), dtype=np.int64)
    for labels, predicted in predictions:
        np.add.at(table, (labels, predicted), 1)
    shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    wrong = table * (1 - np.eye(count, dtype=np.int64))
    worst = [divmod(int(i), count) for i in np.argsort(-wrong, axis=None, kind="stable")[:WORST]]
    short = all(len(name) <= SHORT for name in classes)
    rows = tuple(
        ConfusionRow(
            name,
            "" if short else str(i + 1),
            tuple(ConfusionCell(int(table[i, j]), round(float(shares[i, j]), 3), i == j) for j in range(count)),
        )
        for i, name in enumerate(classes)
    )
    return ConfusionMatrix(
        model,
        rows if count <= MOST_CLASSES else (),
        ", ".join(f"{classes[i]} classified as {classes[j]} ({wrong[i, j]})" for i, j in worst if wrong[i, j]),
    )


@dataclass(frozen=True)
class AngleLine:
    """The extremes and the mean of one network's error over the angles."""

    model: str
    images: str
    least: str
    mean: str
    most: str


def angle_line(model: str, images: int, errors: Sequence[float]) -> AngleLine:
    """Return the line of a network whose errors over the angles were measured on so many images."""
    extremes = (min(errors), float(np.mean(errors)), max(errors))
    return AngleLine(model, str(images), *(f"{value:.1f}" for value in extremes))


@dataclass(frozen=True)
class EquivarianceTable:
    """The equivariance error of every element of a group, and the one that the run itself recorded."""

    model: str
    group: str
    elements: tuple[tuple[str, str], ...]
    recorded: str


def equivariance_table(run: ReportedRun, group: FiniteGroup, errors: Mapping[int, float]) -> EquivarianceTable:
    """Return the table of a run's network with the errors that were measured now."""
    recorded = None if run.result is None else run.result.equivariance_error
    return EquivarianceTable(
        run.model,
        group.name,
        tuple((group.describe(g), f"{error:.1e}") for g, error in errors.items()),
        "not recorded" if recorded is None else f"{recorded:.1e}",
    )


@dataclass(frozen=True)
class EnvelopeRow:
    """A layer or a channel: its attention and its responses for every relative pose."""

    name: str
    cells: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class EnvelopeTable:
    """The envelopes of one network on one dataset: a row per layer, and a row per channel."""

    model: str
    data: str
    poses: tuple[str, ...]
    rows: tuple[EnvelopeRow, ...]
    channels: tuple[EnvelopeRow, ...]


def envelope_table(model: str, data: str, envelopes: Mapping[str, Envelope]) -> EnvelopeTable:
    """Return attention and responses by relative pose."""
    group = next(iter(envelopes.values())).group

    def row(name: str, attention: NDArray[np.float64], responses: NDArray[np.float64]) -> EnvelopeRow:
        return EnvelopeRow(name, tuple((f"{a:.3f}", f"{r:.3f}") for a, r in zip(attention, responses, strict=True)))

    return EnvelopeTable(
        model,
        data,
        tuple(pose_name(group, t) for t in group.elements),
        tuple(
            row(f"{number}  {name}", e.mean(e.attention), e.mean(e.responses))
            for number, (name, e) in enumerate(envelopes.items(), start=1)
        ),
        tuple(
            row(f"layer {number}, {channel}", e.attention[c], e.responses[c])
            for number, e in enumerate(envelopes.values(), start=1)
            for c, channel in enumerate(e.channel_names)
        ),
    )


@dataclass(frozen=True)
class RecipeTable:
    """Fields of a recipe, the commands of its runs, and the versions that they were made with."""

    data: str
    name: str
    provenance: str
    versions: str
    commands: tuple[str, ...]
    fields: tuple[tuple[str, str], ...]


def recipe_table(contest: Contest) -> RecipeTable:
    """Return how the runs of a contest were made."""
    runs = [run for contestant in contest.contestants for run in contestant.runs]
    versions = runs[0].run.versions
    return RecipeTable(
        contest.data,
        contest.recipe,
        contest.provenance,
        ", ".join(f"{name} {version}" for name, version in versions.items()),
        tuple(run.run.command for run in runs),
        tuple((key, _field(getattr(runs[0].run.recipe, key))) for key in FIELDS),
    )


def _field(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def summary(contests: Sequence[Contest], runs: int) -> str:
    """Return the outcome in one or two sentences."""
    networks = {contestant.model for contest in contests for contestant in contest.contestants}
    data = sorted({Path(contest.data).name for contest in contests})
    counted = f"{runs} run{'s' if runs > 1 else ''} of {len(networks)} network{'s' if len(networks) > 1 else ''}"
    text = f"{counted} on {', '.join(data)}."
    if len(contests) > 1:
        return text
    first, *others = contests[0].contestants
    for contestant in others:
        delta = contestant.row.against_first if contestant.row is not None else None
        if delta is not None:
            text += (
                f" Against {first.model}, {contestant.model} is {delta.verdict}: "
                f"{delta.mean:+.2f} points [{delta.low:+.2f}, {delta.high:+.2f}]."
            )
    return text
