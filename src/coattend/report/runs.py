"""The runs of a report: read from their folders, and grouped into contests."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coattend.models import list_models, model_entry
from coattend.models.classifier import run_weights
from coattend.models.records import RunError
from coattend.models.registry import register_user_model
from coattend.train.history import Epoch
from coattend.train.record import Record
from coattend.train.row import IncomparableError, Row, difference, grouped, paired, read_comparison
from coattend.train.run import Result, Run
from coattend.train.run_folder import RunFolder


@dataclass(frozen=True)
class ReportedRun:
    """One run folder, read once.

    - record: None while the run is unfinished
    - predictions: labels and predicted classes of the test images at the epoch of the headline error, if there are any
    """

    folder: RunFolder
    run: Run
    record: Record | None
    history: tuple[Epoch, ...]
    predictions: tuple[NDArray[np.int64], NDArray[np.int64]] | None

    @property
    def model(self) -> str:
        """The network's name with its options."""
        return self.run.model

    @property
    def seed(self) -> int:
        """The seed of weights, order and augmentation."""
        return self.run.seed

    @property
    def result(self) -> Result | None:
        """What came out; None while the run is unfinished."""
        return None if self.record is None else self.record.result

    @property
    def weights(self) -> Path | None:
        """The file that the headline error belongs to, if it is there."""
        return run_weights(self.folder.path)

    @property
    def missing(self) -> str | None:
        """Why the report shows less of this run than of others; None if nothing is missing."""
        if self.record is None:
            return f"unfinished, {len(self.history)} of {self.run.recipe.epochs} epochs; the same command continues it"
        if self.weights is None:
            return "its weights (best.safetensors, last.safetensors) are missing, so there are no pictures of it"
        return None


@dataclass(frozen=True)
class Contestant:
    """One network of a contest: its runs with all seeds, the row of the finished ones, and why it is not compared."""

    model: str
    runs: tuple[ReportedRun, ...]
    row: Row | None
    note: str

    @property
    def shown(self) -> ReportedRun | None:
        """The run whose weights are shown: the first that is finished and has them."""
        return next((run for run in self.runs if run.missing is None), None)


@dataclass(frozen=True)
class Contest:
    """Networks trained by one recipe on the same data."""

    data: str
    recipe: str
    provenance: str
    contestants: tuple[Contestant, ...]


def find_runs(paths: Sequence[Path]) -> tuple[list[ReportedRun], list[str]]:
    """Return the runs at and below ``paths``, and a sentence about each folder that cannot be read.

    They are in the order given, below a folder in the order of its comparison.
    """
    if not paths:
        raise RunError("report expects run folders, or folders that have some below them, for example runs; got none.")
    by_path: dict[Path, ReportedRun] = {}
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
        runs.sort(key=lambda r: (r.run.recipe.data, r.run.recipe.full_name, *_rank(r.model, ranks), r.seed))
        for run in runs:
            by_path.setdefault(run.folder.path.resolve(), run)
    if not by_path:
        raise RunError(f"none of the runs can be read. {' '.join(skipped)}")
    return list(by_path.values()), skipped


def contests(runs: Iterable[ReportedRun]) -> list[Contest]:
    """Return runs by data and recipe, and in each the networks compared with the first."""
    by_recipe: dict[tuple[str, str, str], list[Contestant]] = {}
    for kind, members in grouped(runs, lambda run: run.run.kind).items():
        contestants = by_recipe.setdefault((kind.data, kind.recipe_name, kind.provenance), [])
        contestants.append(_contestant(members, contestants[0] if contestants else None))
    return [
        Contest(Path(data).name, recipe, provenance, tuple(contestants))
        for (data, recipe, provenance), contestants in by_recipe.items()
    ]


def _contestant(runs: Sequence[ReportedRun], first: Contestant | None) -> Contestant:
    records = tuple(run.record for run in runs if run.record is not None)
    row, note = (Row(records) if records else None), ""
    if row is not None and first is not None:
        try:
            row = replace(row, against_first=difference([] if first.row is None else paired(first.row, row)))
        except IncomparableError as error:
            note = str(error)
    return Contestant(runs[0].model, tuple(runs), row, note)


def _ranks(path: Path) -> dict[str, int]:
    """The order of the networks in the latest comparison in a folder or in its parent."""
    for file in (path / "comparison.json", path.parent / "comparison.json"):
        if file.is_file():
            return {model: rank for rank, model in enumerate(read_comparison(file))}
    return {}


def _rank(model: str, ranks: dict[str, int]) -> tuple[int, int, str]:
    names = list_models()  # networks of the user's own are not among them, and come last
    name = model_entry(model).name
    return ranks.get(model, len(ranks)), names.index(name) if name in names else len(names), model


def _read(folder: RunFolder) -> ReportedRun:
    run, result = folder.run, folder.result
    register_user_model(run.model, trusted=False)
    model_entry(run.model)  # raises for an unknown network
    record = None if result is None else folder.record()
    predictions = None if result is None else folder.predictions(result.protocol)
    return ReportedRun(folder, run, record, folder.history(), predictions)


def common_folder(runs: Sequence[ReportedRun]) -> Path:
    """Return the deepest folder that holds all runs."""
    return Path(os.path.commonpath([run.folder.path.resolve() for run in runs]))
