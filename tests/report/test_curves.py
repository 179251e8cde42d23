"""Curves that are easy to lose: at zero, of one epoch, with names that look like mathematics."""

from __future__ import annotations

from pathlib import Path

import pytest

from coattend.report.curves import ANGLES, angle_figure, is_logarithmic, learning_figure
from coattend.report.style import save, svg

pytest.importorskip("matplotlib")


def test_an_error_of_zero_stays_on_the_chart() -> None:
    curves = {"network": [(0.5, 0.9, 1.0)]}
    (axes,) = learning_figure(curves, "valid_accuracy", "validation error in percent").axes
    assert not is_logarithmic(curves, "valid_accuracy")
    assert axes.get_yscale() == "linear"
    assert -5 < axes.get_ylim()[0] < 0  # the curve is above the axis
    assert list(axes.lines[0].get_ydata()) == pytest.approx([50, 10, 0])
    above = {"network": [(0.5, 0.9, 0.95)]}
    assert is_logarithmic(above, "valid_accuracy")
    assert learning_figure(above, "valid_accuracy", "").axes[0].get_yscale() == "log"


def test_one_epoch_is_a_point_at_a_whole_number() -> None:
    (axes,) = learning_figure({"network": [(0.7,)]}, "valid_accuracy", "error").axes
    assert axes.lines[0].get_marker() == "o"
    axes.figure.draw_without_rendering()
    assert all(float(tick).is_integer() for tick in axes.get_xticks())
    low, high = axes.get_ylim()
    assert low < 30 < high
    assert high - low > 10


def test_no_error_at_any_angle_is_a_line_on_a_readable_axis() -> None:
    (axes,) = angle_figure({"network": [0.0] * len(ANGLES)}).axes
    low, high = axes.get_ylim()
    assert -0.1 < low < 0
    assert high == 1


def test_dollars_are_dollars(tmp_path: Path) -> None:
    figure = angle_figure({"$x_$": [1.0] * len(ANGLES)})
    svg(figure, "angles")
    assert [path.name for path in save(figure, tmp_path / "angles")] == ["angles.png", "angles.svg"]
