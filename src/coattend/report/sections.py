"""The content of each part of a report, as plain values for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coattend.groups import FiniteGroup
from coattend.report.envelope import Envelope
from coattend.report.runs import Contest, Contestant, Run
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


def error_table(contest: Contest) -> dict[str, Any]:
    """Errors of every network, its difference from the first, and how sure that is."""
    rows = [contestant.row for contestant in contest.contestants if contestant.row is not None]
    chosen = " and ".join(PROTOCOLS[p] for p in sorted({row.protocol for row in rows}))
    methods = sorted({row.against_first.method for row in rows if row.against_first is not None})
    explanation = f"Test error {chosen}. " if rows else "No run is finished yet. "
    if methods:
        explanation += (
            f"Differences in percentage points against {contest.contestants[0].model}: {'; '.join(methods)}. "
        )
    if any("bootstrap" in method for method in methods):
        explanation += "An interval from one seed does not contain the spread over seeds. "
    explanation += f"Data: {contest.provenance}."
    return {
        "data": contest.data,
        "recipe": contest.recipe,
        "lines": [_error_line(contestant) for contestant in contest.contestants],
        "explanation": explanation,
    }


def _error_line(contestant: Contestant) -> dict[str, Any]:
    finished = [run.seed for run in contestant.runs if run.result is not None]
    parameters = f"{contestant.runs[0].description['parameters']:,}"
    line = dict.fromkeys(("seconds", "errors", "difference", "interval", "verdict"), "")
    line |= {"model": contestant.model, "parameters": parameters, "seeds": str(len(finished)), "mean": "unfinished"}
    if (row := contestant.row) is None:
        return line
    spread = "" if row.spread is None else f" ± {row.spread:.2f}"
    line |= {
        "seconds": f"{row.seconds_per_epoch:.1f}",
        "errors": ", ".join(f"{error:.2f} (seed {seed})" for seed, error in zip(finished, row.errors, strict=True)),
        "mean": f"{row.mean:.2f}{spread}",
    }
    if (delta := row.against_first) is not None:
        line |= {
            "difference": f"{delta.mean:+.2f}",
            "interval": f"{delta.low:+.2f} to {delta.high:+.2f}",
            "verdict": delta.verdict,
        }
    return line


def confusion(
    model: str, kept: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]], classes: Sequence[str]
) -> dict[str, Any]:
    """Counts of true against predicted class over all finished seeds."""
    count = len(classes)
    table = np.zeros((count, count), dtype=np.int64)
    for labels, said in kept:
        np.add.at(table, (labels, said), 1)
    shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    wrong = table * (1 - np.eye(count, dtype=np.int64))
    worst = [divmod(int(i), count) for i in np.argsort(-wrong, axis=None, kind="stable")[:WORST]]
    short = all(len(name) <= SHORT for name in classes)
    rows = [
        {
            "name": name,
            "number": "" if short else str(i + 1),
            "cells": [
                {"count": int(table[i, j]), "share": round(float(shares[i, j]), 3), "right": i == j}
                for j in range(count)
            ],
        }
        for i, name in enumerate(classes)
    ]
    return {
        "model": model,
        "rows": rows if count <= MOST_CLASSES else [],
        "worst": ", ".join(f"{classes[i]} classified as {classes[j]} ({wrong[i, j]})" for i, j in worst if wrong[i, j]),
    }


def angle_line(model: str, images: int, errors: Sequence[float]) -> dict[str, str]:
    """The extremes of a curve."""
    return {
        "model": model,
        "images": str(images),
        "least": f"{min(errors):.1f}",
        "mean": f"{np.mean(errors):.1f}",
        "most": f"{max(errors):.1f}",
    }


def equivariance_line(run: Run, group: FiniteGroup, errors: Mapping[int, float]) -> dict[str, Any]:
    """The error of every element, and what the run recorded itself."""
    recorded = None if run.result is None else run.result["equivariance_error"]
    return {
        "model": run.model,
        "group": group.name,
        "elements": [{"name": group.describe(g), "error": f"{error:.1e}"} for g, error in errors.items()],
        "recorded": "not recorded" if recorded is None else f"{recorded:.1e}",
    }


def envelope_table(model: str, data: str, envelopes: Mapping[str, Envelope]) -> dict[str, Any]:
    """Attention and responses by relative pose: one row per layer, and one per channel."""
    group = next(iter(envelopes.values())).group

    def cells(attention: np.ndarray, responses: np.ndarray) -> list[dict[str, str]]:
        return [{"attention": f"{a:.3f}", "responses": f"{r:.3f}"} for a, r in zip(attention, responses, strict=True)]

    return {
        "model": model,
        "data": data,
        "poses": [pose_name(group, t) for t in group.elements],
        "rows": [
            {"name": f"{place}  {name}", "cells": cells(e.mean(e.attention), e.mean(e.responses))}
            for place, (name, e) in enumerate(envelopes.items(), start=1)
        ],
        "channels": [
            {"name": f"layer {place}, {channel}", "cells": cells(e.attention[c], e.responses[c])}
            for place, e in enumerate(envelopes.values(), start=1)
            for c, channel in enumerate(e.channel_names)
        ],
    }


def recipe_part(contest: Contest) -> dict[str, Any]:
    """Fields, commands and versions of a contest."""
    runs = [run for contestant in contest.contestants for run in contestant.runs]
    versions = runs[0].description["versions"]
    return {
        "data": contest.data,
        "name": contest.recipe,
        "provenance": contest.provenance,
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "commands": [run.command() for run in runs],
        "fields": [(key, _field(value)) for key, value in runs[0].recipe.items() if key in FIELDS],
    }


def _field(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def summary(contests: Sequence[Contest], runs: int) -> str:
    """The outcome in one or two sentences."""
    networks = {contestant.model for contest in contests for contestant in contest.contestants}
    data = sorted({Path(contest.data).name for contest in contests})
    many = "run" if runs == 1 else "runs"
    text = f"{runs} {many} of {len(networks)} network{'s' if len(networks) > 1 else ''} on {', '.join(data)}."
    for contest in contests:
        first = contest.contestants[0]
        for contestant in contest.contestants[1:]:
            delta = contestant.row.against_first if contestant.row is not None else None
            if delta is not None and len(contests) == 1:
                text += (
                    f" Against {first.model}, {contestant.model} is {delta.verdict}: "
                    f"{delta.mean:+.2f} points [{delta.low:+.2f}, {delta.high:+.2f}]."
                )
    return text
