"""Lines of text: what verbs print, and tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coattend.models import exactness_line
from coattend.tasks import Classified, ScoreTable
from coattend.train.run_folder import SKIPPED, TABLE, WORST
from coattend.train.scores import read_scores

if TYPE_CHECKING:
    from coattend.report.attend import AttentionPictures
    from coattend.train.evaluate import EvaluationReport


def attention_lines(pictures: AttentionPictures, image: Path) -> Iterator[str]:
    """Yield what the pictures of an image show and where they are."""
    if pictures.changes:
        yield f"{image}: {pictures.changes}"
    if not pictures.has_attention:
        yield f"{pictures.network} has no attention, so the pictures show its responses only"
    if not pictures.commutes_with_rotation:
        yield "its preprocessing does not commute with rotation, so rows that are brought back may differ"
    for file in pictures.files:
        yield f"wrote {file}"


def evaluation_lines(report: EvaluationReport) -> Iterator[str]:
    """Yield error, loss, a line per class, and equivariance error."""
    trained, held_out = report.trained, report.held_out
    yield f"{report.path} on {held_out.name} ({held_out.provenance}), {len(report.tested.indices):,} images"
    if report.same_data and held_out.provenance != trained.provenance:
        yield f"these images have changed since the training, which was on {trained.provenance}"
    if report.mirrored:
        yield (
            f"these digits are mirror images of those of the training ({trained.provenance}), and the network does not "
            f"recognize mirror images: test it with --data {trained.dataset}"
        )
    precision = "" if report.precision == "32-true" else f", in {report.precision} as it was trained"
    task, evaluation = trained.task, report.evaluation
    error = f"test error {evaluation.error:.2f}%"
    if not isinstance(evaluation, Classified):
        error = f"{task.score} {evaluation.accuracy:.2%}"
    yield f"{error}, loss {evaluation.loss:.4f}{precision}"
    if report.turned is not None:
        figures = f"{report.turned.error:.2f}%, loss {report.turned.loss:.4f}"
        yield f"averaged over {report.turns} turned copies of each image: {figures}{precision}"
    if isinstance(evaluation, Classified) and evaluation.confusion is not None:
        yield from _recall_lines(trained.classes, evaluation.confusion.tolist())
    else:
        yield from score_lines(evaluation.table)
    verdict = "equivariant" if report.is_equivariant else "not equivariant; `coattend check` finds the cause"
    group = trained.network.acting_group.name
    yield f"equivariance error {report.equivariance_error:.1e} over {group}, float32: {verdict}"
    if not report.is_equivariant:
        yield exactness_line(trained.network, trained.image_shape[1:])
    if not trained.preprocessing.commutes_with_rotation:
        yield "its preprocessing does not commute with rotation: it matters which of them comes first"


def outcome_lines(folder: Path) -> tuple[str | None, list[str]]:
    """Return the headline of a finished run unless it is a test error, and lines with its figures and its files."""
    scores = read_scores(folder)
    if scores is None:
        return None, []
    lines = list(score_lines(ScoreTable(tuple(scores.headings), scores.rows)))
    present = [name for name in (TABLE, WORST, SKIPPED) if (folder / name).is_file()]
    lines.append(f"wrote {', '.join(present)} into {folder}")
    headline = None if scores.task == "classification" else f"{scores.score} {scores.value:.2%}"
    return headline, lines


def _recall_lines(classes: Sequence[str], counts: Sequence[Sequence[int]]) -> Iterator[str]:
    """Yield, for every class with images, its recall and the classes that it was confused with."""
    for truth, row in enumerate(counts):
        if total := sum(row):
            others = sorted(((n, c) for c, n in enumerate(row) if n and c != truth), reverse=True)
            wrong = "".join(f", {n:,} as {classes[c]}" for n, c in others)
            yield f"  {classes[truth]}: {row[truth]:,} of {total:,} correct ({row[truth] / total:.1%}){wrong}"


def score_lines(table: ScoreTable) -> Iterator[str]:
    """Yield the figures of every class.

    >>> list(score_lines(ScoreTable(("share of pixels", "Dice"), {"nucleus": (0.12, None)})))
    ['  nucleus: share of pixels 0.12, Dice -']
    """
    for name, row in table.rows.items():
        figures = (
            f"{heading} {'-' if value is None else format(value, '.4g')}"
            for heading, value in zip(table.headings, row, strict=True)
        )
        yield f"  {name}: {', '.join(figures)}"


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table, ending in a newline.

    >>> print(markdown_table(["network", "error"], [["p4cnn", "2.28"]]), end="")
    | network | error |
    |---|---|
    | p4cnn | 2.28 |
    """
    lines = [headings, *rows]
    text = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([text[0], "|---" * len(headings) + "|", *text[1:]]) + "\n"
