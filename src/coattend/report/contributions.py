"""Figure of the contributions of relative poses: one polar plot per layer."""

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

CELL = 1.75  # inches
PALE = "#c5ccd6"


def contribution_figure(restrictions: Mapping[str, Restriction]) -> Figure:
    """Draw a row per restriction and a polar plot per layer: a bar at the angle of each relative pose.

    Bars are relative to the largest one of the layer, and pale for poses that were removed. The hatched bar of a
    mirrored pose is next to the rotation with the same angle.
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
    angles = np.radians([group.angle(g) for g in group.elements])
    mirrors = group.mirrored
    rotations = [g for g in group.elements if not mirrors[g]]
    width = 2 * np.pi / len(rotations) * (0.36 if mirrors.any() else 0.7)
    heights = measured / max(float(measured.max()), np.finfo(float).tiny)
    axes.set_theta_zero_location("N")
    for t in group.elements:
        offset = width * (0.55 if mirrors[t] else -0.55) if mirrors.any() else 0.0
        axes.bar(
            angles[t] - offset,
            heights[t],
            width,
            color=COLOURS[0] if t in after else PALE,
            hatch="////" if mirrors[t] else None,
            edgecolor="white",
            linewidth=0.5,
            zorder=3,
        )
    axes.set_ylim(0, 1.05)
    axes.set_yticks([0.5, 1.0], ["", ""])
    labelled = rotations[:: -(-len(rotations) // 8)]
    axes.set_xticks(angles[labelled], [f"{group.angle(g):.0f}°" for g in labelled], size=6.5)
    axes.tick_params(pad=-3)
    axes.spines["polar"].set_visible(False)


def short_name(name: str) -> str:
    """Shorten the name of a layer: ``stages.1.layer4.conv`` is ``layer4``."""
    parts = [part for part in name.split(".") if not part.isdigit() and part not in ("stages", "conv", "head")]
    return ".".join(parts) or name
