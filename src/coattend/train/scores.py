"""The file scores.json of a run: the score of its task, figures by class, and the confusion matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coattend.models.records import FINITE, TABLE, TEXT, TEXTS, Check, checked, damaged, or_null, read_json
from coattend.tasks import Evaluation, Task

FILE = "scores.json"
MATRIX: Check = (
    "a list of lists of whole numbers",
    lambda v: (
        isinstance(v, list)
        and all(isinstance(row, list) and len(row) == len(v) and all(isinstance(n, int) for n in row) for row in v)
    ),
)
SCORES = {"task": TEXT, "score": TEXT, "error": TEXT, "value": FINITE, "classes": TEXTS, "headings": TEXTS,
          "rows": TABLE, "confusion": or_null(MATRIX)}  # fmt: skip


@dataclass(frozen=True)
class Scores:
    """Score and figures of a finished run.

    - score, error: what ``value``, and 1 - value, are called
    - headings, rows: for each class one figure per heading, None where it is not defined
    - confusion: counts of true classes (rows) and predicted ones (columns), pixels for segmentation
    """

    task: str
    score: str
    error: str
    value: float
    classes: tuple[str, ...]
    headings: tuple[str, ...]
    rows: Mapping[str, tuple[float | None, ...]]
    confusion: tuple[tuple[int, ...], ...] | None

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the file."""
        return asdict(self)


def scores_of(task: Task, evaluation: Evaluation) -> Scores:
    """Return the scores of an evaluation."""
    confusion = None if evaluation.confusion is None else tuple(map(tuple, evaluation.confusion.tolist()))
    table, value = evaluation.table, evaluation.accuracy
    return Scores(task.name, task.score, task.error, value, task.classes, table.headings, table.rows, confusion)


def read_scores(folder: Path) -> Scores | None:
    """Read the scores of a run; None if it has none, as runs of earlier versions."""
    path = folder / FILE
    if not path.is_file():
        return None
    values = checked(path, read_json(path), SCORES)
    for name, row in values["rows"].items():
        if not isinstance(row, list) or len(row) != len(values["headings"]):
            raise damaged(path, f"rows.{name} must have {len(values['headings'])} figures")
    rows = {name: tuple(row) for name, row in values["rows"].items()}
    confusion = values["confusion"]
    return Scores(
        values["task"],
        values["score"],
        values["error"],
        values["value"],
        tuple(values["classes"]),
        tuple(values["headings"]),
        rows,
        None if confusion is None else tuple(map(tuple, confusion)),
    )
