"""Files of a run folder that are missing, damaged or foreign: one sentence with the file's name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coattend.train import RunError
from coattend.train.run_files import (
    read_comparison,
    read_description,
    read_history,
    read_ledger_result,
    read_predictions,
    read_result,
)

DESCRIPTION = {
    "model": "p4cnn", "recipe": {"name": "quick", "data": "mini", "epochs": 2}, "seed": 0, "provenance": "made",
    "parameters": 24680, "versions": {"torch": "2.6"},
}  # fmt: skip
RESULT = {
    "model": "p4cnn", "seed": 0, "provenance": "made", "parameters": 24680, "recipe": "quick", "data": "mini",
    "epochs": 2, "error": {"last": 4.0, "valid": None, "test_optimistic": None}, "valid_epoch": None,
    "valid_error": None, "equivariance_error": 1e-6, "seconds_per_epoch": 1.5, "seconds": 3.0,
}  # fmt: skip
LINE = {"epoch": 0, "train_loss": 2.1, "train_accuracy": 0.2, "seconds": 1.0}
ROW = {"model": "p4cnn", "parameters": 24680, "protocol": "last", "seconds_per_epoch": 1.0}
COMPARISON = {"recipe": "quick", "data": "mini", "provenance": "made", "folders": ["a"], "rows": [ROW]}
KEPT = {**RESULT, "tested": 3, "wrong": "0 2"}

FILES: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    "run.json": (read_description, DESCRIPTION),
    "result.json": (read_result, RESULT),
    "comparison.json": (read_comparison, COMPARISON),
    "kept.json": (read_ledger_result, KEPT),
    "metrics.jsonl": (read_history, LINE),
}
NULLABLE = ("valid_epoch", "valid_error", "equivariance_error")
WRONG: tuple[Any, ...] = (None, "x", -1.5, [], {}, True, [[1]])


def damages(values: dict[str, Any]) -> list[str]:
    """The object with each field missing or of another kind, and texts that are no such object."""
    whole = json.dumps(values)
    texts = ["", "null", "3", "[]", "{}", '"x"', whole[: len(whole) // 2], "[" * 100_000, "\x00", "{]"]
    texts += [json.dumps({k: v for k, v in values.items() if k != field}) for field in values]
    return texts


@pytest.mark.parametrize("name", FILES)
def test_every_damage_is_one_sentence_with_the_file(name: str, tmp_path: Path) -> None:
    read, values = FILES[name]
    path, end = tmp_path / name, "\n" if name.endswith("l") else ""
    path.write_text(json.dumps(values) + end)
    assert read(path) == ([values] if end else values)
    optional = {"train_accuracy"} if end else set()
    for text in damages({k: v for k, v in values.items() if k not in optional}):
        path.write_text(text + end)
        with pytest.raises(RunError, match=name):
            read(path)
    for field in values:
        for wrong in WRONG:
            if type(wrong) is type(values[field]) or (wrong is None and field in NULLABLE):
                continue
            if isinstance(wrong, float) and isinstance(values[field], (int, type(None))) and field != "epoch":
                continue  # a negative number where one may stand
            path.write_text(json.dumps({**values, field: wrong}) + end)
            with pytest.raises(RunError, match=name):
                read(path)
    path.write_bytes(b"\xff\xfe\x00")
    if not end:
        with pytest.raises(RunError, match=name):
            read(path)


def test_nested_fields_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    for read, values in (
        (read_description, {**DESCRIPTION, "recipe": {"name": "quick"}}),
        (read_result, {**RESULT, "error": {"last": None, "valid": None, "test_optimistic": None}}),
        (read_result, {**RESULT, "error": {"last": float("nan"), "valid": None, "test_optimistic": None}}),
        (read_comparison, {**COMPARISON, "rows": [{"model": 3}]}),
        (read_ledger_result, {**KEPT, "wrong": "3"}),
        (read_ledger_result, {**KEPT, "curves": {"train_loss": None}}),
    ):
        path.write_text(json.dumps(values))
        with pytest.raises(RunError, match=r"file.json is damaged"):
            read(path)


def test_a_line_that_is_still_being_written_is_no_epoch_yet(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(LINE) + "\n" + '{"epoch": 1, "train_')
    assert read_history(path) == [LINE]


def test_damaged_predictions_are_named(tmp_path: Path) -> None:
    path = tmp_path / "predictions.npz"
    labels = np.arange(300, dtype=np.uint16) % 10
    np.savez_compressed(path, labels=labels, last=labels)
    whole = path.read_bytes()
    assert set(read_predictions(path)) == {"labels", "last"}
    contents = [whole[:length] for length in range(0, len(whole), 37)]
    contents += [whole[: len(whole) // 3] + b"\x00" + whole[len(whole) // 3 + 1 :]]
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(RunError, match=r"predictions.npz is damaged"):
            read_predictions(path)
    for arrays in ({"labels": labels}, {"labels": labels, "last": labels[1:]}, {"labels": labels, "last": labels / 2}):
        np.savez_compressed(path, **arrays)
        with pytest.raises(RunError, match=r"predictions.npz is damaged"):
            read_predictions(path)
    with pytest.raises(RunError, match=r"predictions.npz is damaged"):
        read_predictions(tmp_path / "absent" / "predictions.npz")


def test_predictions_that_unpack_to_gigabytes_are_refused_first(tmp_path: Path) -> None:
    path = tmp_path / "predictions.npz"
    np.savez_compressed(path, labels=np.zeros(270_000_000, np.uint8), last=np.zeros(3, np.uint8))
    assert path.stat().st_size < 1_000_000
    with pytest.raises(RunError, match=r"packed into"):
        read_predictions(path)
