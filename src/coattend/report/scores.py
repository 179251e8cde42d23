"""The section of a report about scores by class, and the worst predictions as pictures."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from coattend.models.records import RunError
from coattend.report.runs import Contest, ReportedRun
from coattend.train.run_folder import WORST
from coattend.train.scores import Scores, read_scores

MOST_CLASSES = 40  # rows of a table
SHARES = ("recall", "precision", "share of pixels", "Dice", "IoU", "average precision")  # shown in percent


@dataclass(frozen=True)
class ScoreSection:
    """Figures of one network by class, the confusion of pixels in percent of each class, and the worst as a picture."""

    model: str
    explanation: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    confusion: tuple[tuple[str, tuple[str, ...]], ...]
    worst: str


def score_sections(contests: Sequence[Contest], notes: list[str]) -> list[ScoreSection]:
    """Return a section for the shown run of every network that has scores; a note says why one is left out."""
    sections = []
    for contestant in (contestant for contest in contests for contestant in contest.contestants):
        run = contestant.shown
        if run is None:
            continue
        try:
            scores = read_scores(run.folder.path)
        except RunError as error:
            notes.append(f"{contestant.model}: no scores by class. {error}")
            continue
        if scores is not None:
            sections.append(_section(run, scores))
    return sections


def _section(run: ReportedRun, scores: Scores) -> ScoreSection:
    meaning = "" if scores.task == "classification" else f"; the error above is {scores.error}, in percent"
    explanation = f"Seed {run.seed}, {scores.task}: {scores.score} {100 * scores.value:.2f} %{meaning}."
    rows = tuple(
        (name, tuple(_figure(heading, value) for heading, value in zip(scores.headings, row, strict=True)))
        for name, row in list(scores.rows.items())[:MOST_CLASSES]
    )
    headings = tuple(f"{heading}, %" if heading in SHARES else heading for heading in scores.headings)
    return ScoreSection(run.model, explanation, headings, rows, _confusion(scores), _worst(run))


def _figure(heading: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{100 * value:.2f}" if heading in SHARES else f"{value:,.6g}"


def _confusion(scores: Scores) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Confusion in percent of the pixels of each class; that of whole images has a section of its own."""
    if scores.task == "classification" or scores.confusion is None or len(scores.classes) > MOST_CLASSES:
        return ()
    return tuple(
        (name, tuple(f"{100 * count / max(1, sum(row)):.2f}" for count in row))
        for name, row in zip(scores.classes, scores.confusion, strict=True)
    )


def _worst(run: ReportedRun) -> str:
    """Return the contact sheet of the run as a data address; empty without one."""
    path = run.folder.path / WORST
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}" if path.is_file() else ""
