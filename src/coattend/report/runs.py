"""Run folders as a report sees them: found, read, and set side by side."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coattend.models import list_models, model_entry
from coattend.models.records import damaged
from coattend.train.comparison import Difference, Row, difference
from coattend.train.outcome import headline
from coattend.train.recipe import settings_of
from coattend.train.run_files import read_comparison
from coattend.train.run_folder import RunError, RunFolder


@dataclass(frozen=True)
class Run:
    """One run folder, read once.

    - result: None while the run is unfinished
    - predictions: labels and predicted classes of the test images by the headline's protocol, if they were kept
    """

    folder: RunFolder
    description: dict[str, Any]
    result: dict[str, Any] | None
    history: tuple[dict[str, Any], ...]
    predictions: tuple[NDArray[np.int64], NDArray[np.int64]] | None

    @property
    def model(self) -> str:
        """The network's name with its options."""
        return str(self.description["model"])

    @property
    def seed(self) -> int:
        """The seed of weights, order and augmentation."""
        return int(self.description["seed"])

    @property
    def recipe(self) -> dict[str, Any]:
        """Every field of the recipe."""
        return dict(self.description["recipe"])

    @property
    def weights(self) -> Path | None:
        """The file that the headline error belongs to, if it is there."""
        chosen = (self.folder.best_weights, self.folder.last_weights)
        return next((path for path in chosen if path.is_file()), None)

    @property
    def missing(self) -> str | None:
        """Why there is less to show of this run than of others; None if nothing is missing."""
        if self.result is None:
            return f"unfinished, {len(self.history)} of {self.recipe['epochs']} epochs; the same command continues it"
        if self.weights is None:
            return "its weights (best.safetensors, last.safetensors) are missing, so there are no pictures of it"
        return None

    def command(self) -> str:
        """What to type to make this run."""
        name, named = settings_of(str(self.recipe["name"]))
        settings = self.recipe.get("settings") or named  # older runs have them in the name only
        words = ["coattend", "train", self.model, "--data", self.recipe["data"], "--recipe", name]
        words += ["--seed", str(self.seed), *(word for setting in settings for word in ("--set", setting))]
        return shlex.join(words)


@dataclass(frozen=True)
class Contestant:
    """One network of a contest: its runs with all seeds, and how it compares with the first network, or why not."""

    model: str
    runs: tuple[Run, ...]
    row: Row | None
    note: str

    @property
    def shown(self) -> Run | None:
        """The run whose weights are looked into: the first that is finished and has them."""
        return next((run for run in self.runs if run.missing is None), None)


@dataclass(frozen=True)
class Contest:
    """Networks trained by one recipe on the same data."""

    data: str
    recipe: str
    provenance: str
    contestants: tuple[Contestant, ...]


def find_runs(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs among ``paths`` and below them, and a sentence about each folder that cannot be read.

    They are in the order given, below a folder in that of its comparison.
    """
    if not paths:
        raise RunError("report expects run folders, or folders that have some below them, for example runs; got none.")
    found: dict[Path, Run] = {}
    skipped: list[str] = []
    for path in paths:
        if not path.is_dir():
            raise RunError(f"there is no folder {path}; expected a run folder written by `coattend train`.")
        folders = [path] if (path / "run.json").is_file() else [file.parent for file in path.rglob("run.json")]
        if not folders:
            raise RunError(f"{path} has no run.json in it or below; train first, for example with `coattend compare`.")
        runs = []
        for folder in folders:
            try:
                runs.append(_read(RunFolder(folder)))
            except ValueError as error:
                skipped.append(f"Skipped a run: {error}")
        try:
            ranks = _ranks(path)
        except RunError as error:
            skipped.append(f"Networks are in the order of Table 1: {error}")
            ranks = {}
        runs.sort(key=lambda run: (run.recipe["data"], run.recipe["name"], *_place(run.model, ranks), run.seed))
        for run in runs:
            found.setdefault(run.folder.path.resolve(), run)
    if not found:
        raise RunError(f"none of the runs can be read. {' '.join(skipped)}")
    return list(found.values()), skipped


def contests(runs: Iterable[Run]) -> list[Contest]:
    """Runs by data and recipe, and in each the networks against the first of them."""
    grouped: dict[tuple[str, str, str], dict[str, list[Run]]] = {}
    for run in runs:
        key = (run.recipe["data"], run.recipe["name"], str(run.description["provenance"]))
        grouped.setdefault(key, {}).setdefault(run.model, []).append(run)
    return [
        Contest(
            Path(data).name,
            recipe,
            provenance,
            tuple(_contestant(model, members, next(iter(by_model.values()))) for model, members in by_model.items()),
        )
        for (data, recipe, provenance), by_model in grouped.items()
    ]


def _contestant(model: str, runs: list[Run], first: list[Run]) -> Contestant:
    finished = [run for run in runs if run.result is not None]
    if not finished:
        return Contestant(model, tuple(runs), None, "")
    results = [run.result for run in finished if run.result is not None]
    against, reason = (None, "") if runs is first else _against(first, finished)
    row = Row(
        model,
        results[0]["parameters"],
        tuple(headline(result)[1] for result in results),
        headline(results[0])[0],
        float(np.median([result["seconds_per_epoch"] for result in results])),
        against,
    )
    return Contestant(model, tuple(runs), row, reason)


def _against(first: list[Run], runs: list[Run]) -> tuple[Difference | None, str]:
    """Paired over the seeds that both have, and a word where that is not possible."""
    base = {run.seed: run for run in first if run.result is not None}
    common = [run for run in runs if run.seed in base]
    if not common:
        return None, "not compared: no seed in common with the first network"
    if len(common) == 1 and any(run.predictions is None for run in (base[common[0].seed], common[0])):
        return None, "not compared: with one seed, predictions.npz of both runs is needed"
    return difference([base[run.seed].folder for run in common], [run.folder for run in common]), ""


def _ranks(path: Path) -> dict[str, int]:
    """The order of the networks in the comparison that was last made in a folder, or in the one that holds it."""
    for file in (path / "comparison.json", path.parent / "comparison.json"):
        if file.is_file():
            return {row["model"]: place for place, row in enumerate(read_comparison(file)["rows"])}
    return {}


def _place(model: str, ranks: dict[str, int]) -> tuple[int, int, str]:
    return ranks.get(model, len(ranks)), list_models().index(model_entry(model).name), model


def _read(folder: RunFolder) -> Run:
    model_entry(folder.description["model"])  # raises for a network that there is not
    result, predictions = folder.result, None
    if result is not None and (folder.path / "predictions.npz").is_file():
        kept, protocol = folder.predictions(), headline(result)[0]
        if protocol not in kept:
            raise damaged(folder.path / "predictions.npz", f"it has no {protocol}")
        predictions = kept["labels"].astype(np.int64), kept[protocol].astype(np.int64)
    return Run(folder, folder.description, result, tuple(folder.history()), predictions)


def common_folder(runs: Sequence[Run]) -> Path:
    """The deepest folder that holds all runs."""
    return Path(os.path.commonpath([run.folder.path.resolve() for run in runs]))
