"""The files of a run folder, read and checked: what is damaged or foreign ends in one sentence with the file's name."""

from __future__ import annotations

import json
import math
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coattend.data.storage import opened_npz


class RunError(ValueError):
    """A run that cannot go on; the message is meant for the user as it stands."""


Check = tuple[str, Callable[[Any], bool]]  # what a value has to be, in words and as a test

TEXT: Check = ("a text", lambda v: isinstance(v, str))
WHOLE: Check = ("a whole number", lambda v: _whole(v))
COUNT: Check = ("a whole number from 0", lambda v: _whole(v) and v >= 0)
NUMBER: Check = ("a number", lambda v: _whole(v) or isinstance(v, float))
FINITE: Check = ("a finite number", lambda v: NUMBER[1](v) and math.isfinite(v))
TABLE: Check = ("an object", lambda v: isinstance(v, dict))
SHAPE: Check = (
    "three whole numbers from 1",
    lambda v: isinstance(v, list) and len(v) == 3 and all(_whole(side) and side >= 1 for side in v),
)
TEXTS: Check = ("a list of texts", lambda v: isinstance(v, list) and all(isinstance(item, str) for item in v))


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _or_null(check: Check) -> Check:
    return (f"{check[0]} or null", lambda v: v is None or check[1](v))


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
    "valid_epoch": _or_null(COUNT),
    "valid_error": _or_null(FINITE),
    "equivariance_error": _or_null(NUMBER),
    "seconds_per_epoch": FINITE,
    "seconds": FINITE,
}
ERRORS = {"last": FINITE, "valid": _or_null(FINITE), "test_optimistic": _or_null(FINITE)}
LINE = {"epoch": COUNT, "train_loss": NUMBER, "seconds": NUMBER}
COMPARISON = {"recipe": TEXT, "data": TEXT, "provenance": TEXT, "folders": TEXTS}
ROW = {"model": TEXT, "parameters": COUNT, "protocol": TEXT, "seconds_per_epoch": FINITE}
HEADER = {"preprocessing": TABLE, "classes": TEXTS, "image_shape": SHAPE}
PREPROCESSING = {"steps": TEXTS, "clip": _or_null(FINITE)}
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
    checked(path, result, {"arithmetic": _or_null(TEXT), "curves": TABLE}, optional=True)
    curves = result.get("curves", {})
    checked(path, curves, dict.fromkeys(curves, TEXT), "curves.")
    wrong = result["wrong"].split()
    if not all(image.isdecimal() and int(image) < result["tested"] for image in wrong):
        raise damaged(path, f"wrong is to name test images below {result['tested']}")
    return result


def read_history(path: Path) -> list[dict[str, Any]]:
    """Read metrics.jsonl, one object per epoch; a last line without its end is still being written."""
    lines = _text(path).split("\n")[:-1]
    history = [checked(path, _parsed(path, line), LINE, f"line {number}: ") for number, line in enumerate(lines, 1)]
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


def read_header(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Read what training wrote into the header of a model file: preprocessing, classes, image shape and recipe."""
    header = {key: _parsed(path, metadata[key]) for key in (*HEADER, "recipe") if key in metadata}
    checked(path, header, HEADER)
    checked(path, header["preprocessing"], PREPROCESSING, "preprocessing.")
    checked(path, header, {"recipe": TABLE}, optional=True)
    checked(path, header.get("recipe", {}), {"fit": TEXT}, "recipe.", optional=True)
    return header


def read_header_recipe(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Read the recipe that training wrote into the header of a model file."""
    header = {"recipe": _parsed(path, metadata["recipe"])} if "recipe" in metadata else {}
    recipe: dict[str, Any] = checked(path, header, {"recipe": TABLE})["recipe"]
    return checked(path, recipe, {"data": TEXT}, "recipe.")


def checked(
    path: Path, values: Any, checks: Mapping[str, Check], where: str = "", *, optional: bool = False
) -> dict[str, Any]:
    """Return the object if its fields are what they have to be; optional ones may be missing."""
    if not isinstance(values, dict):
        raise damaged(path, f"{where}expected an object, got {type(values).__name__}")
    for key, (words, holds) in checks.items():
        if key not in values:
            if optional:
                continue
            raise damaged(path, f"{where}{key} is missing")
        if not holds(values[key]):
            raise damaged(path, f"{where}{key} is to be {words}, got {str(values[key])[:40]!r}")
    return values


def damaged(path: Path, reason: str) -> RunError:
    """Make the error for a file that cannot be used."""
    return RunError(f"{path} is damaged ({reason}); restore it from a copy, or train again into another folder.")


def _json(path: Path) -> Any:
    return _parsed(path, _text(path))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise damaged(path, str(error)) from error


def _parsed(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(path, str(error)) from error
