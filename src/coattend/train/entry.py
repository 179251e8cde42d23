"""Entries of the leaderboard: finished runs, each tested on turned copies too, in files that anybody can add."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import torch

from coattend._files import write_atomically
from coattend._timing import interleaved, training_step
from coattend.data.rotated_mnist import current_name
from coattend.models import create_model
from coattend.models.classifier import load_trained
from coattend.models.pretrained import file_stem
from coattend.models.records import COUNT, FINITE, TABLE, RunError, checked, damaged, parsed, read_text
from coattend.train.evaluate import evaluate_classifier
from coattend.train.loop import train
from coattend.train.recipe import Recipe
from coattend.train.record import Record
from coattend.train.run import Kind
from coattend.train.run_folder import RunFolder

TURNS = 4
REFERENCE = "p4cnn"  # whose training step is the unit of time
ROUNDS, BATCH = 6, 128
ADMITTED = 0.1  # percentage points by which two tests of the same weights may differ, on different processors


@dataclass(frozen=True)
class Entry:
    """A run on the leaderboard.

    - turns, turned_error: the test error in percent, averaged over so many turned copies of each image
    - step: the time of a training step relative to REFERENCE, measured alternately
    """

    record: Record
    turns: int
    turned_error: float
    step: float

    def to_dict(self) -> dict[str, Any]:
        """Return the content of a line."""
        turned = {"turns": self.turns, "error": self.turned_error}
        return {**self.record.to_dict(), "turned": turned, "step": self.step}

    @classmethod
    def from_dict(cls, path: Path, number: int, values: Any) -> Entry:
        """Check the inverse of :meth:`to_dict`, in a line of a file: its figures have to agree with each other."""
        where = f"line {number}: "
        checked(path, values, {"turned": TABLE, "step": FINITE}, where)
        checked(path, values["turned"], {"turns": COUNT, "error": FINITE}, f"{where}turned.")
        record = Record.from_dict(path, number, values)
        result = record.result
        if result.protocol != "last":
            raise damaged(path, f"{where}the epoch was chosen on validation images, expected the last epoch")
        if not record.tested or not math.isclose(100 * len(record.wrong) / record.tested, result.error.last):
            raise damaged(path, f"{where}{len(record.wrong)} wrong of {record.tested} are not {result.error.last:g}%")
        if record.command != result.kind.command(result.seed):
            raise damaged(path, f"{where}command is to be {result.kind.command(result.seed)!r}")
        return cls(record, values["turned"]["turns"], values["turned"]["error"], values["step"])


def read_entries(board: Path) -> dict[Kind, tuple[Entry, ...]]:
    """Read every file of a leaderboard; each holds the runs of one row, by seed."""
    rows: dict[Kind, tuple[Entry, ...]] = {}
    for path in sorted(board.glob("*.jsonl")):
        entries = read_row(path)
        kinds = {entry.record.result.kind for entry in entries}
        seeds = [entry.record.result.seed for entry in entries]
        if len(kinds) != 1 or len(set(seeds)) != len(seeds) or kinds & set(rows):
            raise damaged(
                path, "a file of a leaderboard holds all runs of one network by one recipe, one for each seed"
            )
        rows[kinds.pop()] = entries
    return rows


def read_row(path: Path) -> tuple[Entry, ...]:
    """Read one file of a leaderboard."""
    lines = read_text(path).splitlines()
    return tuple(Entry.from_dict(path, number, parsed(path, line)) for number, line in enumerate(lines, 1))


def row_file(board: Path, kind: Kind) -> Path:
    """Return the file of a row."""
    data = current_name(kind.data, kind.provenance)
    return board / f"{file_stem(f'{kind.model}@{kind.recipe_name}@{data}')}.jsonl"


def train_entry(model: str, recipe: Recipe, seed: int, root: Path, board: Path) -> Entry:
    """Train a run, or continue it, on a CPU, and put it on the leaderboard."""
    check_recipe(recipe)
    train(model, recipe, seed, root, accelerator="cpu")
    return add_run(board, RunFolder.of(root, model, recipe, seed))


def check_recipe(recipe: Recipe) -> None:
    """Raise unless a recipe trains and tests on all images."""
    if recipe.train_on != "train+valid":
        raise ValueError(
            f"the leaderboard expects a recipe that trains on all images, train_on=train+valid, got {recipe.full_name} "
            f"with train_on={recipe.train_on}; to choose settings on validation images, use `coattend compare`."
        )
    if recipe.test_images is not None:
        raise ValueError(f"the leaderboard tests on all test images; leave out test_images={recipe.test_images}.")


def add_run(board: Path, folder: RunFolder) -> Entry:
    """Put a finished run into its file unless it is there: test it on turned copies, and measure its step."""
    record = folder.record()
    kind, seed = record.result.kind, record.result.seed
    path = row_file(board, kind)
    present = _by_seed(read_row(path)).get(seed) if path.is_file() else None
    if present is not None and present.record.result == record.result:
        return present
    entry = measured_entry(folder, record)
    board.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder.path.parent / "leaderboard.lock"):  # runs of one row may end at the same time
        entries = {**_by_seed(read_row(path) if path.is_file() else ()), seed: entry}
        if {other.record.result.kind for other in entries.values()} != {kind}:
            raise RunError(f"{path} holds runs on other images than {kind.provenance}; choose another --board.")
        _write(path, [entries[number] for number in sorted(entries)])
    return entry


def measured_entry(folder: RunFolder, record: Record) -> Entry:
    """Test a finished run once on the images and once on turned copies of them, and measure its step."""
    report = evaluate_classifier(str(folder.path), None, TURNS)
    again, result = report.evaluation.error, record.result
    if abs(again - result.error.last) > ADMITTED:
        raise RunError(
            f"the weights in {folder.path} have a test error of {again:.2f}%, but result.json says "
            f"{result.error.last:.2f}%; train it again into another folder."
        )
    assert report.turned is not None
    step = relative_step(result.model, load_trained(folder.path).image_shape, folder.run.recipe.precision)
    return Entry(record, TURNS, report.turned.error, step)


def relative_step(model: str, image_shape: tuple[int, int, int], precision: str) -> float:
    """Measure the time of a training step relative to REFERENCE; the median over alternating rounds."""
    images = torch.randn(BATCH, *image_shape)
    labels = torch.zeros(BATCH, dtype=torch.int64)
    networks = {name: create_model(name, in_channels=image_shape[0]) for name in dict.fromkeys((REFERENCE, model))}
    steps = {name: training_step(network, images, labels) for name, network in networks.items()}
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
        seconds = interleaved(steps, ROUNDS, warm_up=1)
    pairs = zip(seconds[model], seconds[REFERENCE], strict=True)
    return round(statistics.median(own / unit for own, unit in pairs), 3)


def _by_seed(entries: Iterable[Entry]) -> dict[int, Entry]:
    return {entry.record.result.seed: entry for entry in entries}


def _write(path: Path, entries: Sequence[Entry]) -> None:
    write_atomically(path, "".join(json.dumps(entry.to_dict()) + "\n" for entry in entries).encode())
