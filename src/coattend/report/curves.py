"""Learning curves over the epochs, and error over the angle of the input."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coattend.data.augmentation import rotate_batch
from coattend.equivariance import is_exact
from coattend.models.classifier import Classifier
from coattend.nn.observe import evaluating, multiply_adds
from coattend.report.style import COLOURS, STYLES, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curve = Sequence[float | None]  # a measure after each epoch of one run; None where it was not taken

WIDTH, PLOT = 4.7, 2.5  # inches; the legend comes below
NARROW = 4  # a range from 1 to this has evenly spaced ticks

STEP = 5
ANGLES = tuple(range(0, 360, STEP))
AFFORDABLE = 8e10  # multiply-adds that all curves of a page may cost: some ten seconds
FEWEST, MOST = 8, 200  # images of a curve


def learning_figure(curves: Mapping[str, Sequence[Curve]], measure: str, label: str) -> Figure:
    """Draw one line per run, one colour per network; accuracies become errors in percent."""
    with _chart(len(curves)) as (figure, axes):
        from matplotlib.ticker import MaxNLocator, NullLocator

        epochs: list[int] = [0]
        values: list[float] = []
        for number, (model, runs) in enumerate(curves.items()):
            for seed, curve in enumerate(runs):
                points = measured(curve, measure)
                if points:
                    x, y = zip(*points, strict=True)
                    _draw_line(axes, number, x, y, None if seed else model)
                    epochs += x
                    values += y
        _finish(figure, axes, "epoch", label, bool(values))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if max(epochs) <= 1:
            axes.set_xlim(0, 2)
        if not is_logarithmic(curves, measure):
            _from_zero(axes, max(values, default=0))
            return figure
        axes.set_yscale("log")
        if min(values) == max(values):
            axes.set_ylim(values[0] / 2, values[0] * 2)
        low, high = axes.get_ylim()
        if high <= NARROW * low:
            axes.yaxis.set_major_locator(MaxNLocator(nbins=6))
            axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")
    return figure


def measured(curve: Curve, measure: str) -> list[tuple[int, float]]:
    """Return epochs, counted from 1, with the values measured after them; accuracies become errors in percent."""
    return [(epoch, _value(raw, measure)) for epoch, raw in enumerate(curve, 1) if raw is not None]


def is_logarithmic(curves: Mapping[str, Sequence[Curve]], measure: str) -> bool:
    """Return whether the scale is logarithmic: if there are values and all are positive."""
    values = [value for runs in curves.values() for curve in runs for _, value in measured(curve, measure)]
    return min(values, default=0) > 0


def error_by_angle(trained: Classifier, images: Tensor, labels: Tensor) -> list[float]:
    """Return the percentage of images (n, channels, height, width) of bytes that are misclassified at each of ANGLES.

    Images are rotated counter-clockwise before the preprocessing: by less than 90 degrees with interpolation and a
    continued border, then by exact quarter turns. Where :func:`repeats` is true, the first quarter is measured and
    repeated.
    """
    quarters = 1 if repeats(trained) else 4
    errors: dict[int, float] = {}
    with evaluating(trained.network):
        for degrees in range(0, 90, STEP):
            tilt = torch.full((len(images),), math.radians(degrees), dtype=torch.float32)
            tilted = rotate_batch(images.float(), tilt).clamp(0, 255)
            for quarter in range(quarters):
                turned = trained.preprocessing(torch.rot90(tilted, quarter, (-2, -1)))
                predicted = trained.network(turned).argmax(1)
                errors[degrees + 90 * quarter] = 100 * int((predicted != labels).sum()) / len(labels)
    return [errors[degrees % (90 * quarters)] for degrees in ANGLES]


def repeats(trained: Classifier) -> bool:
    """Return whether quarter turns of the input provably do not change the logits, except for rounding."""
    group, (_, size, _) = trained.network.group, trained.image_shape
    turning = group.planar is not None and any((m == [[0, -1], [1, 0]]).all() for m in group.planar)
    return turning and is_exact(trained.network, size) and trained.preprocessing.commutes_with_rotation


def affordable_images(trained: Classifier, networks: int) -> int:
    """Return the number of images for the curve of one of ``networks`` networks, within the limit of a page."""
    per_angle = sum(multiply_adds(trained.network, trained.image_shape).values())
    angles = len(ANGLES) // (4 if repeats(trained) else 1)
    return max(FEWEST, min(MOST, int(AFFORDABLE / (per_angle * angles * networks))))


def angle_figure(errors: Mapping[str, Sequence[float]]) -> Figure:
    """Draw the error over the angle by which the test images were rotated."""
    with _chart(len(errors)) as (figure, axes):
        for number, (model, values) in enumerate(errors.items()):
            _draw_line(axes, number, ANGLES, values, model)
        axes.set_xticks(range(0, 361, 45), [f"{a}°" for a in range(0, 361, 45)])
        axes.set_xlim(0, 360)
        _from_zero(axes, max(max(values) for values in errors.values()))
        _finish(figure, axes, "rotation of the input", "test error in percent", True)
    return figure


@contextmanager
def _chart(names: int) -> Iterator[tuple[Figure, Axes]]:
    below = 0.62 + 0.17 * names
    height = PLOT + below + 0.35
    with drawing(WIDTH, height) as figure:
        yield figure, figure.add_axes((0.12, below / height, 0.84, PLOT / height))


def _from_zero(axes: Axes, highest: float) -> None:
    """Set a linear scale that begins slightly below 0, so that the axis does not hide a curve at 0."""
    top = max(1.0, 1.05 * highest)
    axes.set_ylim(-0.03 * top, top)


def _value(raw: float, measure: str) -> float:
    return 100 * (1 - raw) if measure.endswith("accuracy") else raw


def _draw_line(axes: Axes, number: int, x: Sequence[float], y: Sequence[float], label: str | None) -> None:
    """Draw the curve of a network, with a marker if it has one point only."""
    style = STYLES[number // len(COLOURS) % len(STYLES)] if number >= len(COLOURS) else STYLES[number % 2]
    marker = "o" if len(x) == 1 else None
    axes.plot(x, y, color=COLOURS[number % len(COLOURS)], linestyle=style, linewidth=1.5, marker=marker, label=label)


def _finish(figure: Figure, axes: Axes, x_label: str, y_label: str, drawn: bool) -> None:
    axes.set_xlabel(x_label)
    axes.set_title(y_label, loc="left", size=9)
    axes.grid(axis="y")
    if not drawn:
        axes.text(0.5, 0.5, "not recorded in these runs", transform=axes.transAxes, ha="center")
        return
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="lower left", fontsize=8, handlelength=2.6)
