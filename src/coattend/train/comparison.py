"""Train several networks side by side and compare each with the first."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coattend._files import write_atomically
from coattend._terminal import say
from coattend.train.loop import train
from coattend.train.processes import is_first
from coattend.train.recipe import Recipe, changed
from coattend.train.recipes import get_recipe
from coattend.train.record import Record
from coattend.train.row import IncomparableError, Row, difference, paired
from coattend.train.run_folder import InUseError, RunFolder

WAIT = 5.0  # seconds between attempts at runs that other processes train


@dataclass(frozen=True)
class Comparison:
    """Networks trained by one recipe with the same seeds: a row each, compared with the first."""

    recipe: str
    data: str
    provenance: str
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]
    folders: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the content of comparison.json."""
        names = ("recipe", "data", "provenance", "seeds", "folders")
        return {**{name: getattr(self, name) for name in names}, "rows": [row.to_dict() for row in self.rows]}


def compare(
    models: Sequence[str],
    seeds: Sequence[int],
    recipe_name: str,
    root: str | Path,
    *,
    data: str | None = None,
    settings: Sequence[str] = (),
    accelerator: str = "auto",
    devices: int = 1,
    nodes: int = 1,
) -> Comparison | None:
    """Train every model with every seed, continuing what is there, and compare the others with the first.

    In training by several processes, only the first returns the comparison; the others return None.
    """
    if not models or not seeds:
        raise ValueError("compare expects the names of networks, the first to measure the others against, and seeds.")
    if len(set(models)) != len(models) or len(set(seeds)) != len(seeds):
        raise ValueError(f"compare expects models and seeds without repetition, got {list(models)} and {list(seeds)}.")
    root = Path(root)
    recipes = {model: changed(get_recipe(recipe_name, model, data), settings) for model in models}
    jobs = [(model, seed) for model in models for seed in seeds]

    def train_one(model: str, recipe: Recipe, seed: int) -> None:
        train(model, recipe, seed, root, accelerator=accelerator, devices=devices, nodes=nodes)

    train_all(jobs, recipes, train_one)
    if not is_first():
        return None
    folders = {model: [RunFolder.of(root, model, recipes[model], seed) for seed in seeds] for model in models}
    rows = [_row([folder.record() for folder in folders[model]]) for model in models]
    first, *others = rows
    compared = (first, *(replace(row, against_first=difference(paired(first, row))) for row in others))
    paths = tuple(str(folder.path) for model in models for folder in folders[model])
    kind = first.kind
    comparison = Comparison(kind.recipe_name, Path(kind.data).name, kind.provenance, tuple(seeds), compared, paths)
    write_atomically(root / "comparison.json", (json.dumps(comparison.to_dict(), indent=1) + "\n").encode())
    return comparison


def _row(records: Sequence[Record]) -> Row:
    kinds = {record.result.kind for record in records}
    if len(kinds) > 1:  # precision=auto, on machines with and without bfloat16
        names = " and ".join(sorted(kind.recipe_name for kind in kinds))
        raise IncomparableError(
            f"runs of {records[0].result.model} were trained by {names}; choose one precision for all seeds, for "
            "example with --set precision=32-true."
        )
    return Row(tuple(records))


def train_all(
    jobs: Sequence[tuple[str, int]], recipes: Mapping[str, Recipe], train_one: Callable[[str, Recipe, int], None]
) -> None:
    """Train every model with every seed; runs that another process is training come last."""
    waiting, told = list(jobs), False
    while waiting:
        before, waiting = waiting, []
        for model, seed in before:
            try:
                train_one(model, recipes[model], seed)
            except InUseError:
                waiting.append((model, seed))
        if waiting == before:
            if not told and is_first():
                say(f"waiting for runs that other processes train: {', '.join(f'{m} seed {n}' for m, n in waiting)}")
            told = True
            time.sleep(WAIT)
