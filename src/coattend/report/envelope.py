"""The co-occurrence envelope: how much each pose is attended to, seen from the pose that responds most."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coattend.groups import FiniteGroup
from coattend.report.style import COLOURS, INK, drawing
from coattend.report.views import LayerView, contrast, layer_views, pose_angle, pose_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.projections.polar import PolarAxes

BATCH = 20
COLUMNS = 7


@dataclass(frozen=True)
class Envelope:
    """One layer's envelope, (channels, relative pose).

    With ``g0(u)`` the pose of the largest response of a channel at position u, ``w(u) = max_g x[g, u] - min_g x[g, u]``
    how much the poses differ there, and ``t`` a pose relative to g0:

    - attention: ``E[t] = sum_u w(u) mask[g0(u) t, u] / sum_u w(u)``, 1 throughout for a layer without attention
    - responses: ``R[t] = sum_u w(u) r[g0(u) t, u] / sum_u w(u)``, where ``r = (x - min_g x) / w``

    Both sum over all images. Turning an image by h takes u to h u and g0 to h g0, so ``g0 t`` becomes ``h g0 t``, where
    the turned mask holds the same value: E and R do not depend on how the images are turned.
    """

    group: FiniteGroup
    attention: NDArray[np.float64]
    responses: NDArray[np.float64]
    weight: NDArray[np.float64]
    has_attention: bool
    channel_names: tuple[str, ...]

    def mean(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Over the channels, each by its contrast."""
        return np.asarray(np.average(values, axis=0, weights=self.weight))


def co_occurrence(model: nn.Module, images: Tensor) -> dict[str, Envelope]:
    """The envelope of every layer that has more than one pose, on images (n, channels, height, width) as it takes them.

    Layers are those of :func:`coattend.report.views.layer_views`.
    """
    if images.ndim != 4 or not len(images):
        raise ValueError(
            f"co_occurrence expects images (n, channels, height, width), at least one, got {tuple(images.shape)}."
        )
    sums: dict[str, tuple[Tensor, ...]] = {}
    views: dict[str, LayerView] = {}
    for batch in images.split(BATCH):
        for view in layer_views(model, batch):
            if view.group.order > 1:
                views[view.name] = view
                new = _sums(view)
                sums[view.name] = (
                    tuple(a + b for a, b in zip(sums[view.name], new, strict=True)) if view.name in sums else new
                )
    return {name: _envelope(views[name], *sums[name]) for name in views}


def _sums(view: LayerView) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted sums of mask and responses by relative pose, (channels, group), and of the weights, (channels,)."""
    x = view.responses.double()
    spread = contrast(x)
    reference = x.argmax(dim=2)  # b c h w
    poses = torch.tensor(view.group.product, device=x.device)[reference].movedim(-1, 2)  # b c t h w: g0 t
    masks = torch.ones_like(x) if view.mask is None else view.mask.double()
    seen = masks.gather(2, poses) * spread.unsqueeze(2)
    heard = x.gather(2, poses) - x.amin(dim=2, keepdim=True)
    return seen.sum(dim=(0, 3, 4)), heard.sum(dim=(0, 3, 4)), spread.sum(dim=(0, 2, 3))


def _envelope(view: LayerView, seen: Tensor, heard: Tensor, weight: Tensor) -> Envelope:
    """A channel whose poses never differ attends to all of them alike."""
    silent = weight == 0
    scale = weight.masked_fill(silent, 1).unsqueeze(1)
    attention = (seen / scale).masked_fill(silent.unsqueeze(1), 1).cpu().numpy()
    responses = (heard / scale).masked_fill(silent.unsqueeze(1), 1).cpu().numpy()
    weights = weight.cpu().numpy() if not silent.all() else np.ones(len(weight))
    names = tuple(view.channel_name(c) for c in range(len(weight)))
    return Envelope(view.group, attention, responses, weights, view.mask is not None, names)


def envelope_figure(networks: Mapping[str, Mapping[str, Mapping[str, Envelope]]]) -> Figure:
    """One row per network, one polar plot per layer, one colour per data set.

    ``networks[network][data set][layer]`` are envelopes, all networks on the same data sets. Of many layers some are
    drawn, spread evenly from the first to the last.
    """
    rows = [(network, _chosen(by_data)) for network, by_data in networks.items()]
    columns = max(len(layers) for _, layers in rows)
    cell, left = 1.62, 0.25
    width, row_height, foot = max(6.5, left + columns * cell), cell + 0.35, 0.5
    height = len(rows) * row_height + foot
    with drawing(width, height) as figure:
        for r, (network, layers) in enumerate(rows):
            top = height - r * row_height
            figure.text(left / width, (top - 0.14) / height, network, weight="bold", size=9.5, va="center")
            for c, (number, layer) in enumerate(layers):
                corner = ((left + c * cell + 0.28) / width, (top - row_height + 0.22) / height)
                axes = figure.add_axes((*corner, (cell - 0.6) / width, (cell - 0.6) / height), projection="polar")
                axes.set_title(f"layer {number}", size=8, pad=7)
                for place, envelopes in enumerate(networks[network].values()):
                    _draw_envelope(axes, envelopes[layer], place, alone=len(networks[network]) == 1)  # type: ignore[arg-type]
        everything = [e for by_data in networks.values() for layers in by_data.values() for e in layers.values()]
        mirrors = any(_mirrored(envelope.group).any() for envelope in everything)
        _draw_legend(figure, list(next(iter(networks.values()))), mirrors)
    return figure


def _chosen(by_data: Mapping[str, Mapping[str, Envelope]]) -> list[tuple[int, str]]:
    layers = list(next(iter(by_data.values())))
    picked = np.unique(np.linspace(0, len(layers) - 1, min(COLUMNS, len(layers))).round().astype(int))
    return [(int(i) + 1, layers[i]) for i in picked]


def _draw_envelope(axes: PolarAxes, envelope: Envelope, place: int, alone: bool) -> None:
    """Of several data sets the first gets the widest line, so that those that coincide with it stay visible."""
    group, colour = envelope.group, COLOURS[place % len(COLOURS)]
    width = 1.8 if alone else (1.2 if place else 3.6)
    mirrored = _mirrored(group)
    axes.set_theta_zero_location("N")
    axes.set_ylim(0, 1.05)
    axes.set_yticks([0.5, 1.0], ["", ""])
    upright = np.flatnonzero(~mirrored)
    shown = upright if len(upright) <= 8 else upright[:: math.ceil(len(upright) / 8)]
    axes.set_xticks([_theta(group, int(t)) for t in shown], [pose_name(group, int(t)) for t in shown], size=6.5)
    axes.tick_params(pad=-2)
    axes.spines["polar"].set_visible(False)
    for part, marker, dashes in ((~mirrored, "o", "-"), (mirrored, "s", "--")):
        if not part.any():
            continue
        order = sorted(np.flatnonzero(part).tolist(), key=lambda t: _theta(group, t))
        closed = [*order, order[0]]
        angle = np.unwrap([_theta(group, t) for t in closed])
        if alone:
            for values in envelope.attention:
                axes.plot(angle, values[closed], color=colour, linewidth=0.5, alpha=0.35, zorder=2)
        mean = envelope.mean(envelope.attention)[closed]
        axes.plot(angle, mean, dashes, color=colour, linewidth=width, marker=marker, markersize=2.5, zorder=4)
        if dashes == "-" and place == 0:
            axes.fill(angle, mean, color=colour, alpha=0.15, zorder=1)
        heard = envelope.mean(envelope.responses)[closed]
        axes.plot(angle, heard, ":", color=colour, linewidth=max(1.1, 0.6 * width), zorder=3)


def _mirrored(group: FiniteGroup) -> NDArray[np.bool_]:
    assert group.planar is not None
    return np.asarray(np.linalg.det(group.planar) < 0)


def _theta(group: FiniteGroup, t: int) -> float:
    return math.radians(pose_angle(group, t))


def _draw_legend(figure: Figure, data_sets: list[str], mirrors: bool) -> None:
    from matplotlib.lines import Line2D

    if len(data_sets) == 1:
        colour, handles, on = COLOURS[0], [], f" on {data_sets[0]}"
    else:
        colours = itertools.cycle(COLOURS)
        colour, on = INK, ""
        handles = [Line2D([], [], color=next(colours), linewidth=2, label=data) for data in data_sets]
    handles.append(Line2D([], [], color=colour, linewidth=1.8, marker="o", markersize=3, label=f"attention E{on}"))
    if mirrors:
        handles.append(
            Line2D([], [], color=colour, linestyle="--", marker="s", markersize=3, label="E, mirrored poses")
        )
    handles.append(Line2D([], [], color=colour, linewidth=1.1, linestyle=":", label=f"responses R{on}"))
    figure.legend(handles=handles, loc="lower left", ncols=len(handles), fontsize=8, handlelength=2.2)
