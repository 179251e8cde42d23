"""Lines of text: what verbs print, and tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coattend.models import exactness_line

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
    yield f"{report.path} on {held_out.name} ({held_out.provenance}), {len(report.labels):,} images"
    if report.same_data and held_out.provenance != trained.provenance:
        yield f"these images have changed since the training, which was on {trained.provenance}"
    if report.mirrored:
        yield (
            f"these digits are mirror images of those of the training ({trained.provenance}), and the network does not "
            f"recognize mirror images: test it with --data {trained.dataset}"
        )
    precision = "" if report.precision == "32-true" else f", in {report.precision} as it was trained"
    yield f"test error {report.evaluation.error:.2f}%, loss {report.evaluation.loss:.4f}{precision}"
    if report.turned is not None:
        figures = f"{report.turned.error:.2f}%, loss {report.turned.loss:.4f}"
        yield f"averaged over {report.turns} turned copies of each image: {figures}{precision}"
    yield from _recall_lines(trained.classes, report.confusion().tolist())
    verdict = "equivariant" if report.is_equivariant else "not equivariant; `coattend check` finds the cause"
    group = trained.network.acting_group.name
    yield f"equivariance error {report.equivariance_error:.1e} over {group}, float32: {verdict}"
    if not report.is_equivariant:
        yield exactness_line(trained.network, trained.image_shape[1:])
    if not trained.preprocessing.commutes_with_rotation:
        yield "its preprocessing does not commute with rotation: it matters which of them comes first"


def _recall_lines(classes: Sequence[str], counts: Sequence[Sequence[int]]) -> Iterator[str]:
    """Yield, for every class with images, its recall and the classes that it was confused with."""
    for truth, row in enumerate(counts):
        if total := sum(row):
            others = sorted(((n, c) for c, n in enumerate(row) if n and c != truth), reverse=True)
            wrong = "".join(f", {n:,} as {classes[c]}" for n, c in others)
            yield f"  {classes[truth]}: {row[truth]:,} of {total:,} correct ({row[truth] / total:.1%}){wrong}"


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
