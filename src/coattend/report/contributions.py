"""What the relative poses of each layer contribute, drawn around a circle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coattend.groups import FiniteGroup
from coattend.report.style import COLOURS, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.projections.polar import PolarAxes

    from coattend.train.restriction import Restriction

CELL = 1.75
PALE = "#c5ccd6"


def contribution_figure(restrictions: Mapping[str, Restriction]) -> Figure:
    """One row per restriction, one circle per layer: a bar at the angle of each relative pose, pale if it was cut.

    Bars are scaled by the largest of the layer. A mirrored pose stands beside the turn it is made of, hatched.
    """
    columns = max(len(restriction.after) for restriction in restrictions.values())
    width, height = max(5.0, 0.3 + CELL * columns), (CELL + 0.3) * len(restrictions) + 0.1
    with drawing(width, height) as figure:
        for row, (title, restriction) in enumerate(restrictions.items()):
            top = height - row * (CELL + 0.3)
            figure.text(0.1 / width, (top - 0.14) / height, title, weight="bold", size=9.5, va="center")
            for column, (name, after) in enumerate(restriction.after.items()):
                corner = (0.3 + column * CELL + 0.2) / width, (top - CELL - 0.1) / height
                size = (CELL - 0.65) / width, (CELL - 0.65) / height
                axes = figure.add_axes((*corner, *size), projection="polar")
                axes.set_title(short_name(name), size=7.5, pad=9)
                measured = np.zeros(restriction.group.order)
                measured[list(restriction.before[name])] = restriction.contributions[name].clamp(min=0).numpy()
                _draw(axes, restriction.group, measured, after)  # type: ignore[arg-type]
    return figure


def _draw(axes: PolarAxes, group: FiniteGroup, measured: NDArray[np.float64], after: tuple[int, ...]) -> None:
    angles, mirrored = _angles(group)
    turns = max(1, int((~mirrored).sum()))
    width = 2 * np.pi / turns * (0.36 if mirrored.any() else 0.7)
    heights = measured / max(float(measured.max()), np.finfo(float).tiny)
    axes.set_theta_zero_location("N")
    for t in group.elements:
        beside = width * (0.55 if mirrored[t] else -0.55) if mirrored.any() else 0.0
        axes.bar(
            angles[t] - beside,
            heights[t],
            width,
            color=COLOURS[0] if t in after else PALE,
            hatch="////" if mirrored[t] else None,
            edgecolor="white",
            linewidth=0.5,
            zorder=3,
        )
    axes.set_ylim(0, 1.05)
    axes.set_yticks([0.5, 1.0], ["", ""])
    shown = [g for g in group.elements if not mirrored[g]]
    shown = shown if len(shown) <= 8 else shown[:: -(-len(shown) // 8)]
    axes.set_xticks(angles[shown], [f"{round(float(np.degrees(angles[g])))}°" for g in shown], size=6.5)
    axes.tick_params(pad=-3)
    axes.spines["polar"].set_visible(False)


def _angles(group: FiniteGroup) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """How far each element turns, counter-clockwise, and whether it mirrors first."""
    assert group.planar is not None
    mirrored = np.linalg.det(group.planar) < 0
    turned = np.where(mirrored[:, None], -group.planar[:, :, 0], group.planar[:, :, 0])
    return np.arctan2(turned[:, 1], turned[:, 0]) % (2 * np.pi), mirrored


def short_name(name: str) -> str:
    """``stages.1.layer4.conv`` as ``layer4``."""
    parts = [part for part in name.split(".") if not part.isdigit() and part not in ("stages", "conv", "head")]
    return ".".join(parts) or name
