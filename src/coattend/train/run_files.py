"""The files of a run folder, read and checked: what is damaged or foreign ends in one sentence with the file's name."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from coattend.data.store import opened_npz
from coattend.models.records import (
    COUNT,
    FINITE,
    NUMBER,
    TABLE,
    TEXT,
    TEXTS,
    WHOLE,
    RunError,
    checked,
    damaged,
    or_null,
    parsed,
)

DESCRIPTION = {
    "model": TEXT,
    "recipe": TABLE,
    "seed": WHOLE,
    "provenance": TEXT,
    "parameters": COUNT,
    "versions": TABLE,
}
RECIPE = {"name": TEXT, "data": TEXT, "epochs": COUNT}
RESULT = {
    "model": TEXT,
    "seed": WHOLE,
    "provenance": TEXT,
    "parameters": COUNT,
    "recipe": TEXT,
    "data": TEXT,
    "epochs": COUNT,
    "error": TABLE,
    "valid_epoch": or_null(COUNT),
    "valid_error": or_null(FINITE),
    "equivariance_error": or_null(NUMBER),
    "seconds_per_epoch": FINITE,
    "seconds": FINITE,
}
ERRORS = {"last": FINITE, "valid": or_null(FINITE), "test_optimistic": or_null(FINITE)}
LINE = {"epoch": COUNT, "train_loss": NUMBER, "seconds": NUMBER}
COMPARISON = {"recipe": TEXT, "data": TEXT, "provenance": TEXT, "folders": TEXTS}
ROW = {"model": TEXT, "parameters": COUNT, "protocol": TEXT, "seconds_per_epoch": FINITE}
KEPT = {"tested": COUNT, "wrong": TEXT}


def read_description(path: Path) -> dict[str, Any]:
    """Read run.json: model, recipe, seed, provenance, versions."""
    if not path.is_file():
        raise RunError(
            f"{path.parent} is not a run folder: it has no {path.name}; expected one written by `coattend train`."
        )
    description = checked(path, _json(path), DESCRIPTION)
    checked(path, description["recipe"], RECIPE, "recipe.")
    checked(path, description, {"arithmetic": TEXT, "data_digest": TEXT}, optional=True)
    return description


def read_result(path: Path) -> dict[str, Any]:
    """Read result.json: what a finished run was and the errors it ended with."""
    result = checked(path, _json(path), RESULT)
    checked(path, result, {"settings": TEXTS}, optional=True)
    checked(path, result["error"], ERRORS, "error.")
    return result


def read_ledger_result(path: Path) -> dict[str, Any]:
    """Read one result of the ledger: as result.json, with the test images that were misclassified and the curves."""
    result = checked(path, read_result(path), KEPT)
    checked(path, result, {"arithmetic": or_null(TEXT), "curves": TABLE}, optional=True)
    curves = result.get("curves", {})
    checked(path, curves, dict.fromkeys(curves, TEXT), "curves.")
    wrong = result["wrong"].split()
    if not all(image.isdecimal() and int(image) < result["tested"] for image in wrong):
        raise damaged(path, f"wrong is to name test images below {result['tested']}")
    return result


def read_history(path: Path) -> list[dict[str, Any]]:
    """Read metrics.jsonl, one object per epoch; a last line without its end is still being written."""
    lines = _text(path).split("\n")[:-1]
    history = [checked(path, parsed(path, line), LINE, f"line {number}: ") for number, line in enumerate(lines, 1)]
    for number, line in enumerate(history, 1):
        checked(path, line, dict.fromkeys(line, NUMBER), f"line {number}: ")
    return history


def read_predictions(path: Path) -> dict[str, np.ndarray]:
    """Read predictions.npz: labels and predicted classes of the test images, by protocol (last, and perhaps valid)."""
    try:
        with opened_npz(path) as file:
            arrays = {name: np.asarray(file[name]) for name in file.files}
    except (OSError, ValueError, EOFError, KeyError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise damaged(path, str(error) or type(error).__name__) from error
    missing = {"labels", "last"} - set(arrays)
    if missing:
        raise damaged(path, f"it has no {', '.join(sorted(missing))}")
    shape = arrays["labels"].shape
    for name, array in arrays.items():
        if array.ndim != 1 or array.shape != shape or array.dtype.kind not in "iu":
            raise damaged(path, f"{name} is {array.dtype} {array.shape}, expected whole numbers of the labels' shape")
    return arrays


def read_comparison(path: Path) -> dict[str, Any]:
    """Read comparison.json: networks in their order, with errors and differences."""
    comparison = checked(path, _json(path), {**COMPARISON, "rows": ("a list", lambda v: isinstance(v, list))})
    for place, row in enumerate(comparison["rows"]):
        checked(path, row, ROW, f"rows[{place}].")
    return comparison


def _json(path: Path) -> Any:
    return parsed(path, _text(path))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise damaged(path, str(error)) from error
