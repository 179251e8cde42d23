"""Records in JSON, checked when they are read: in run folders and in the headers of model files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any


class RunError(ValueError):
    """A run that cannot continue; the message is for the user.

    - exit_code: of a command that it ends; by default that of all mistakes, which the same command repeats
    """

    exit_code = 2


class MachineError(RunError):
    """A failure of the machine, such as a full disk or a lost process, which the same command may not meet again."""

    exit_code = 74  # EX_IOERR of <sysexits.h>


Check = tuple[str, Callable[[Any], bool]]  # what is expected, in words and as a test

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


def or_null(check: Check) -> Check:
    """Return the same check for a value that may be null."""
    return (f"{check[0]} or null", lambda v: v is None or check[1](v))


HEADER = {"preprocessing": TABLE, "classes": TEXTS, "image_shape": SHAPE}
PREPROCESSING = {"steps": TEXTS, "clip": or_null(FINITE)}


def read_header(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Read what training wrote into the header of a model file: preprocessing, classes, image shape and recipe."""
    header = {key: parsed(path, metadata[key]) for key in (*HEADER, "recipe") if key in metadata}
    checked(path, header, HEADER)
    checked(path, header["preprocessing"], PREPROCESSING, "preprocessing.")
    checked(path, header, {"recipe": TABLE}, optional=True)
    checked(path, header.get("recipe", {}), {"fit": TEXT, "data": TEXT}, "recipe.", optional=True)
    return header


def read_header_recipe(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Read the recipe that training wrote into the header of a model file."""
    header = {"recipe": parsed(path, metadata["recipe"])} if "recipe" in metadata else {}
    recipe: dict[str, Any] = checked(path, header, {"recipe": TABLE})["recipe"]
    return checked(path, recipe, {"data": TEXT}, "recipe.")


def checked(
    path: Path, values: Any, checks: Mapping[str, Check], where: str = "", *, optional: bool = False
) -> dict[str, Any]:
    """Return the object if its fields pass the checks; optional ones may be missing."""
    if not isinstance(values, dict):
        raise damaged(path, f"{where}expected an object, got {type(values).__name__}")
    for key, (words, holds) in checks.items():
        if key not in values:
            if optional:
                continue
            raise damaged(path, f"{where}{key} is missing")
        if not holds(values[key]):
            raise damaged(path, f"{where}{key} must be {words}, got {str(values[key])[:40]!r}")
    return values


def known_fields(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are fields of a dataclass; files of other versions may have more."""
    return {field.name: values[field.name] for field in fields(kind) if field.name in values}


def damaged(path: Path, reason: str) -> RunError:
    """Return the error for a file that cannot be used."""
    return RunError(f"{path} is damaged ({reason}); restore it from a copy, or train again into another folder.")


def parsed(path: Path, text: str) -> Any:
    """Parse JSON; ``path`` is named where that fails."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(path, str(error)) from error


def read_json(path: Path) -> Any:
    """Parse a JSON file."""
    return parsed(path, read_text(path))


def read_text(path: Path) -> str:
    """Read a file of UTF-8 text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise damaged(path, str(error)) from error
