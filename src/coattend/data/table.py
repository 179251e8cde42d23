"""Tables of images: a CSV or Parquet file with a row per image, its path, its target, and perhaps split and group."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from coattend._words import did_you_mean
from coattend.data.listing import SPLIT_FOLDERS, WHOLE, Files, Listing, problem_list
from coattend.data.masks import class_names
from coattend.data.streaming import DataError

SUFFIXES = (".csv", ".tsv", ".parquet")
PATH, SPLIT, GROUP = "path", "split", "group"
LABEL, LABELS, MASK, TARGET = "label", "labels", "mask", "target"
SEPARATOR = "|"  # between several labels of an image

Row = Mapping[str, str]


def list_table(path: Path, group: str | None = None) -> Listing:
    """List the images of a table; the column of the target says what it is for.

    ``label`` is the name of a class; ``labels`` are several, separated by ``|``, or none; ``mask`` is the path of a
    mask; ``target``, or any number of columns ``target NAME``, are numbers to predict. ``split`` is train, valid or
    test; ``group`` names the column of what must not be divided between splits, by default the column ``group``.
    """
    rows = _read(path)
    columns = list(rows[0])
    targets = [column for column in columns if column == TARGET or column.startswith(f"{TARGET} ")]
    kinds = [column for column in (LABEL, LABELS, MASK) if column in columns] + targets[:1]
    if PATH not in columns or len(kinds) != 1:
        raise DataError(
            f"{path}: expected the column {PATH} and one of {LABEL}, {LABELS}, {MASK} or {TARGET}, got "
            f"{', '.join(map(repr, columns))}; rename its columns."
        )
    group = group or (GROUP if GROUP in columns else None)
    if group is not None and group not in columns:
        raise DataError(
            f"{path} has no column {group!r}{did_you_mean(group, columns)}; its columns are {', '.join(columns)}."
        )
    _check_paths(path, rows, [PATH, MASK] if MASK in columns else [PATH])
    task, classes, values = _targets(path, rows, kinds[0], targets)
    parts = {}
    for split, members in _by_split(path, rows).items():
        chosen = [rows[i] for i in members]
        parts[split] = Files(
            tuple(path.parent / row[PATH] for row in chosen),
            None if values is None else values[torch.tensor(members, dtype=torch.int64)],
            tuple(path.parent / row[MASK] for row in chosen) if task == "segmentation" else None,
            None if group is None else tuple(row[group] for row in chosen),
        )
    return Listing(path, task, classes, parts)


def _read(path: Path) -> list[Row]:
    try:
        rows = _read_parquet(path) if path.suffix == ".parquet" else _read_csv(path)
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as a table ({error}); save it again as CSV in UTF-8.") from error
    if not rows:
        raise DataError(f"{path}: expected a row per image below the names of the columns, got none.")
    return rows


def _read_csv(path: Path) -> list[Row]:
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",", strict=True)
        rows: list[Row] = list(reader)
    for number, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise ValueError(f"line {number} has not the {len(reader.fieldnames or ())} columns of the first")
    return rows


def _read_parquet(path: Path) -> list[Row]:
    try:
        from pyarrow import parquet  # type: ignore[import-untyped]
    except ImportError as error:
        raise DataError(f"{path}: reading Parquet needs pyarrow; run `pip install pyarrow`, or save a CSV.") from error
    return [
        {key: "" if v is None else str(v) for key, v in row.items()} for row in parquet.read_table(path).to_pylist()
    ]


def _check_paths(path: Path, rows: Sequence[Row], columns: Sequence[str]) -> None:
    missing = [
        f"line {number}: there is no file {path.parent / row[column]}"
        for number, row in enumerate(rows, 2)
        for column in columns
        if not row[column] or not (path.parent / row[column]).is_file()
    ]
    if missing:
        missing = missing if len(missing) > 1 else [f"{path}, {missing[0]}; correct the path, relative to the table."]
        raise problem_list(path, missing, len(rows), "files do not exist; paths are relative to the table")


def _by_split(path: Path, rows: Sequence[Row]) -> dict[str, list[int]]:
    if SPLIT not in rows[0]:
        return {WHOLE: list(range(len(rows)))}
    parts: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        split = SPLIT_FOLDERS.get(row[SPLIT].strip().lower())
        if split is None:
            raise DataError(f"{path}, line {number + 2}: expected the split train, valid or test, got {row[SPLIT]!r}.")
        parts.setdefault(split, []).append(number)
    return {split: parts[split] for split in ("train", "valid", "test") if split in parts}


def _targets(
    path: Path, rows: Sequence[Row], kind: str, targets: Sequence[str]
) -> tuple[str, tuple[str, ...], Tensor | None]:
    if kind == MASK:
        return "segmentation", class_names(path.parent), None
    if kind == LABEL:
        empty = [number for number, row in enumerate(rows, 2) if not row[LABEL].strip()]
        if empty:
            raise DataError(f"{path}, line {empty[0]}: expected a label, got none; fill it in or remove the row.")
        classes = sorted({row[LABEL].strip() for row in rows})
        return "classification", tuple(classes), torch.tensor([classes.index(row[LABEL].strip()) for row in rows])
    if kind == LABELS:
        sets = [{name.strip() for name in row[LABELS].split(SEPARATOR) if name.strip()} for row in rows]
        classes = sorted(set().union(*sets))
        return "multi-label", tuple(classes), torch.tensor([[n in s for n in classes] for s in sets]).byte()
    numbers = [[_number(path, line, column, row[column]) for column in targets] for line, row in enumerate(rows, 2)]
    names = tuple(column.removeprefix(TARGET).strip() or TARGET for column in targets)
    return "regression", names, torch.tensor(numbers, dtype=torch.float32)


def _number(path: Path, line: int, column: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{path}, line {line}: expected a finite number in {column!r}, got {text!r}.")
    return number
