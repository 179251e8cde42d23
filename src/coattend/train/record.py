"""Finished runs as lines of a results file: the result, the command, the curves, and the misclassified test images."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coattend._files import write_atomically
from coattend.models.records import COUNT, TABLE, TEXT, Check, checked, damaged, or_null, parsed, read_text
from coattend.train.history import Epoch
from coattend.train.run import Result, Run

MEASURES = ("train_loss", "train_accuracy", "valid_loss", "valid_accuracy", "test_accuracy")
INDICES: Check = (
    "a list of whole numbers from 0",
    lambda v: isinstance(v, list) and all(COUNT[1](item) for item in v),
)
CURVE: Check = (
    "a list of numbers or null",
    lambda v: isinstance(v, list) and all(item is None or isinstance(item, (int, float)) for item in v),
)


@dataclass(frozen=True)
class Record:
    """A finished run as tables use it.

    - source: where it was read from, for messages
    - arithmetic: as in :class:`Run`; None where it was not recorded
    - tested, wrong: how many test images there are, and which are misclassified at the epoch of the headline error;
      None without predictions
    - curves: measures after every epoch, to five digits, None where one was not taken
    """

    source: str
    result: Result
    command: str
    arithmetic: str | None = None
    tested: int | None = None
    wrong: tuple[int, ...] = ()
    curves: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)

    def misclassified(self) -> NDArray[np.bool_]:
        """Return which test images are misclassified, as a mask."""
        mask = np.zeros(self.tested or 0, dtype=np.bool_)
        mask[list(self.wrong)] = True
        return mask

    def to_dict(self) -> dict[str, Any]:
        """Return the content of a line."""
        rest = {"arithmetic": self.arithmetic, "tested": self.tested, "wrong": self.wrong, "curves": dict(self.curves)}
        return {"command": self.command, **self.result.to_dict(), **rest}

    @classmethod
    def from_dict(cls, path: Path, number: int, values: Any) -> Record:
        """Check the inverse of :meth:`to_dict`, in a line of a file."""
        where = f"line {number}: "
        checked(path, values, {"command": TEXT, "arithmetic": or_null(TEXT), "curves": TABLE}, where)
        checked(path, values, {"tested": or_null(COUNT), "wrong": INDICES}, where)
        checked(path, values["curves"], dict.fromkeys(values["curves"], CURVE), f"{where}curves.")
        if max(values["wrong"], default=-1) >= (values["tested"] or 0):
            raise damaged(path, f"{where}wrong is to name test images below {values['tested']}")
        return cls(
            f"{path}, line {number}",
            Result.from_dict(path, values),
            values["command"],
            values["arithmetic"],
            values["tested"],
            tuple(values["wrong"]),
            {measure: tuple(curve) for measure, curve in values["curves"].items()},
        )


def record_of(
    source: Path, run: Run, result: Result, history: Sequence[Epoch], wrong: NDArray[np.bool_] | None
) -> Record:
    """Return the record of a run folder."""
    indices = () if wrong is None else tuple(int(image) for image in wrong.nonzero()[0])
    tested = None if wrong is None else len(wrong)
    command = result.kind.command(result.seed)
    return Record(str(source), result, command, run.arithmetic, tested, indices, curves_of(history))


def curves_of(history: Sequence[Epoch]) -> dict[str, tuple[float | None, ...]]:
    """Return each measure that was taken, after every epoch, to five digits."""
    curves = {measure: tuple(_rounded(getattr(epoch, measure)) for epoch in history) for measure in MEASURES}
    return {measure: curve for measure, curve in curves.items() if any(value is not None for value in curve)}


def read_records(path: Path) -> list[Record]:
    """Read a results file; one that does not exist has none."""
    if not path.is_file():
        return []
    lines = read_text(path).splitlines()
    return [Record.from_dict(path, number, parsed(path, line)) for number, line in enumerate(lines, 1)]


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write a results file, sorted by dataset, network, recipe and seed."""

    def position(record: Record) -> tuple[str, str, str, int]:
        kind = record.result.kind
        return kind.data, kind.model, kind.recipe_name, record.result.seed

    lines = [json.dumps(record.to_dict()) + "\n" for record in sorted(records, key=position)]
    write_atomically(path, "".join(lines).encode())


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
