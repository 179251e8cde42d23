"""Files of a run folder that are missing, damaged or foreign: one sentence with the file's name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coattend.train import Result, Run, RunError, RunFolder, changed, get_recipe
from coattend.train.history import read_history
from coattend.train.predictions import read_predictions
from coattend.train.record import read_records
from coattend.train.row import read_comparison

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
RECORD = {
    **RESULT, "settings": [], "command": "coattend train p4cnn", "arithmetic": "AVX2", "tested": 3, "wrong": [0, 2],
    "curves": {"train_loss": [0.5, None]},
}  # fmt: skip


def read_run(path: Path) -> dict[str, Any]:
    """The fields that the file has."""
    found = Run.read(path).to_dict()
    recipe = {key: found["recipe"][key] for key in DESCRIPTION["recipe"]}
    return {key: found[key] for key in DESCRIPTION} | {"recipe": recipe}


def read_result(path: Path) -> dict[str, Any]:
    return {key: value for key, value in Result.read(path).to_dict().items() if key in RESULT}


def read_record(path: Path) -> dict[str, Any]:
    (record,) = read_records(path)
    return json.loads(json.dumps(record.to_dict()))


def read_epoch(path: Path) -> dict[str, Any]:
    (epoch,) = read_history(path)
    return epoch.to_dict()


def read_models(path: Path) -> dict[str, Any]:
    assert read_comparison(path) == ("p4cnn",)
    return COMPARISON


FILES: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    "run.json": (read_run, DESCRIPTION),
    "result.json": (read_result, RESULT),
    "comparison.json": (read_models, COMPARISON),
    "record.jsonl": (read_record, RECORD),
    "metrics.jsonl": (read_epoch, LINE),
}
NULLABLE = ("valid_epoch", "valid_error", "equivariance_error", "arithmetic", "tested")
OPTIONAL = ("train_accuracy", "settings")
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
    assert read(path) == values
    for text in damages({k: v for k, v in values.items() if k not in OPTIONAL}):
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
    path = tmp_path / "file.jsonl"
    for read, values in (
        (Run.read, {**DESCRIPTION, "recipe": {"name": "quick"}}),
        (Run.read, {**DESCRIPTION, "recipe": {**DESCRIPTION["recipe"], "lr": "x"}}),
        (Run.read, {**DESCRIPTION, "recipe": {**DESCRIPTION["recipe"], "settings": [3]}}),
        (Run.read, {**DESCRIPTION, "recipe": {**DESCRIPTION["recipe"], "of_a_later_version": 3}}),
        (Result.read, {**RESULT, "error": {"last": None, "valid": None, "test_optimistic": None}}),
        (Result.read, {**RESULT, "error": {"last": float("nan"), "valid": None, "test_optimistic": None}}),
        (read_comparison, {**COMPARISON, "rows": [{"model": 3}]}),
        (read_record, {**RECORD, "wrong": [3]}),
        (read_record, {**RECORD, "curves": {"train_loss": None}}),
        (read_record, {**RECORD, "curves": {"train_loss": ["0.5"]}}),
    ):
        path.write_text(json.dumps(values))
        with pytest.raises(RunError, match=r"file.jsonl is damaged"):
            read(path)


def test_a_line_that_is_still_being_written_is_no_epoch_yet(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(LINE) + "\n" + '{"epoch": 1, "train_')
    assert read_epoch(path) == LINE


def test_a_folder_of_an_earlier_version_is_the_same_run(tmp_path: Path) -> None:
    """Settings were kept in the name, in the order of the command line; digest and arithmetic were not kept."""
    name = "quick+train_on=train+valid+epochs=2"
    recipe = changed(get_recipe("quick"), ["epochs=2", "train_on=train+valid"])
    old = {key: value for key, value in recipe.to_dict().items() if key not in ("settings", "size", "fit")}
    files = {
        "run.json": {**DESCRIPTION, "recipe": {**old, "name": name}, "machine": "x86_64"},
        "result.json": {**RESULT, "recipe": name},
    }
    for file, values in files.items():
        (tmp_path / file).write_text(json.dumps(values, indent=1))
    (tmp_path / "metrics.jsonl").write_text(json.dumps({**LINE, "a_measure_of_then": 1.0}) + "\n")
    labels = np.array([1, 2, 3], np.uint16)
    np.savez_compressed(tmp_path / "predictions.npz", labels=labels, last=labels + np.array([0, 1, 0], np.uint16))
    folder = RunFolder(tmp_path)
    assert folder.run.recipe == recipe
    assert folder.run.differences("p4cnn", recipe, 0, None) == []
    assert folder.run.differences("p4cnn", changed(recipe, ["epochs=3"]), 1, None) == ["seed", "recipe.epochs"]
    record = folder.record()
    assert record.result.kind == folder.run.kind
    assert record.result.settings == ("epochs=2", "train_on=train+valid")
    assert record.command == "coattend train p4cnn --data mini --recipe quick --seed 0 --set epochs=2 --set " + (
        "train_on=train+valid"
    )
    assert (record.arithmetic, record.tested, record.wrong) == (None, 3, (1,))
    assert record.curves == {"train_loss": (2.1,), "train_accuracy": (0.2,)}


def test_written_and_read_again_they_are_equal(tmp_path: Path) -> None:
    recipe = changed(get_recipe("house"), ["epochs=2", "augmentation=none"])
    run = Run("p4cnn", recipe, 3, "made", 5, {"torch": "2.6"}, "digest", "x86_64")
    folder = RunFolder(tmp_path)
    folder.write("run.json", run.to_dict())
    assert folder.run == run
    (tmp_path / "result.json").write_text(json.dumps(RESULT))
    result = folder.result
    assert result is not None
    folder.finish(result)
    assert folder.result == result
    assert (result.protocol, result.test_error) == ("last", 4.0)


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
