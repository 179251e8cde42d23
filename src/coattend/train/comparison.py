"""Train several networks side by side, and say whether one is better, by how much, and how sure that is."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coattend._files import write_atomically
from coattend._terminal import say
from coattend.models.records import damaged
from coattend.train.loop import train
from coattend.train.outcome import headline
from coattend.train.processes import is_first
from coattend.train.recipe import Recipe, changed
from coattend.train.recipes import get_recipe
from coattend.train.run_folder import InUseError, RunFolder

CONFIDENCE = 0.95
RESAMPLES = 10_000
WAIT = 5.0  # seconds between looks at runs that other processes train


@dataclass(frozen=True)
class Difference:
    """Error of one network minus that of another, in percentage points, with a 95% interval."""

    mean: float
    low: float
    high: float
    method: str

    @property
    def verdict(self) -> str:
        """In one word."""
        return "better" if self.high < 0 else "worse" if self.low > 0 else "undecided"

    def __str__(self) -> str:
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}] {self.verdict}"


@dataclass(frozen=True)
class Row:
    """One network of a comparison."""

    model: str
    parameters: int
    errors: tuple[float, ...]
    protocol: str
    seconds_per_epoch: float
    against_first: Difference | None

    @property
    def mean(self) -> float:
        """Mean test error in percent."""
        return statistics.fmean(self.errors)

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds; None with one seed."""
        return statistics.stdev(self.errors) if len(self.errors) > 1 else None


@dataclass(frozen=True)
class Comparison:
    """What :func:`compare` found."""

    recipe: str
    data: str
    provenance: str
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]
    folders: tuple[str, ...]


def compare(
    models: Sequence[str],
    seeds: Sequence[int],
    recipe_name: str,
    root: str | Path,
    *,
    data: str | None = None,
    settings: Sequence[str] = (),
    **placement: Any,
) -> Comparison | None:
    """Train every model with every seed, resuming what is there; the others are measured against the first.

    In training by several processes, only the first returns the comparison; the others return None.
    """
    if not models or not seeds:
        raise ValueError("compare expects the names of networks, the first to measure the others against, and seeds.")
    if len(set(models)) != len(models) or len(set(seeds)) != len(seeds):
        raise ValueError(f"compare expects models and seeds without repetition, got {list(models)} and {list(seeds)}.")
    root = Path(root)
    recipes = {model: changed(get_recipe(recipe_name, model, data), settings) for model in models}
    found = _train_all([(model, seed) for model in models for seed in seeds], recipes, root, placement)
    results = {model: [found[model, seed] for seed in seeds] for model in models}
    folders = {model: [RunFolder.of(root, model, recipes[model], seed) for seed in seeds] for model in models}
    if not is_first():
        return None
    first = models[0]
    rows = tuple(
        Row(
            model,
            results[model][0]["parameters"],
            tuple(headline(result)[1] for result in results[model]),
            headline(results[model][0])[0],
            statistics.median(result["seconds_per_epoch"] for result in results[model]),
            None if model == first else difference(folders[first], folders[model]),
        )
        for model in models
    )
    sample = results[first][0]
    paths = tuple(str(folder.path) for model in models for folder in folders[model])
    shown = Path(sample["data"]).name
    comparison = Comparison(sample["recipe"], shown, sample["provenance"], tuple(seeds), rows, paths)
    write_atomically(root / "comparison.json", (json.dumps(asdict(comparison), indent=1) + "\n").encode())
    return comparison


def _train_all(
    jobs: Sequence[tuple[str, int]], recipes: dict[str, Recipe], root: Path, placement: dict[str, Any]
) -> dict[tuple[str, int], dict[str, Any]]:
    """Train every model with every seed; runs that another process is training come last."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    waiting, told = list(jobs), False
    while waiting:
        before, waiting = waiting, []
        for model, seed in before:
            try:
                found[model, seed] = train(model, recipes[model], seed, root, **placement)
            except InUseError:
                waiting.append((model, seed))
        if waiting == before:
            if not told and is_first():
                say(f"waiting for runs that other processes train: {', '.join(f'{m} seed {n}' for m, n in waiting)}")
            told = True
            time.sleep(WAIT)
    return found


def difference(base: Sequence[RunFolder], other: Sequence[RunFolder]) -> Difference:
    """Paired over seeds; with one seed, a bootstrap over the test images."""
    pairs = [(_result(a), _result(b)) for a, b in zip(base, other, strict=True)]
    deltas = [headline(b)[1] - headline(a)[1] for a, b in pairs]
    if len(deltas) > 1:
        return over_seeds(deltas)
    base_wrong, other_wrong = wrong_images(base[0]), wrong_images(other[0])
    if len(base_wrong) != len(other_wrong):
        counts = f"it has {len(other_wrong)} test images, {base[0].path / 'predictions.npz'} has {len(base_wrong)}"
        raise damaged(other[0].path / "predictions.npz", counts)
    return over_images(base_wrong, other_wrong)


def over_seeds(deltas: Sequence[float]) -> Difference:
    """Student's interval for the mean of paired differences."""
    from scipy import stats  # type: ignore[import-untyped]

    mean, error = statistics.fmean(deltas), statistics.stdev(deltas) / len(deltas) ** 0.5
    reach = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(deltas) - 1)) * error
    return Difference(mean, mean - reach, mean + reach, f"paired over {len(deltas)} seeds")


def over_images(base_wrong: np.ndarray, other_wrong: np.ndarray) -> Difference:
    """Percentile interval of the difference under resampling of the test images."""
    delta = 100.0 * (other_wrong.astype(np.int8) - base_wrong.astype(np.int8))
    values, counts = np.unique(delta, return_counts=True)
    draws = np.random.default_rng(0).multinomial(len(delta), counts / len(delta), size=RESAMPLES)
    low, high = np.quantile(draws @ values / len(delta), [0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2])
    return Difference(float(delta.mean()), float(low), float(high), "one seed: bootstrap over test images")


def _result(folder: RunFolder) -> dict[str, Any]:
    result = folder.result
    assert result is not None
    return result


def wrong_images(folder: RunFolder) -> np.ndarray:
    """Which test images a finished run's network reads wrongly, at the epoch of its headline."""
    arrays, protocol = folder.predictions(), headline(_result(folder))[0]
    if protocol not in arrays:
        raise damaged(folder.path / "predictions.npz", f"it has no {protocol}")
    return np.asarray(arrays[protocol] != arrays["labels"])
