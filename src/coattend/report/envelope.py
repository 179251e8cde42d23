"""The co-occurrence envelope: attention to each pose relative to the pose that responds most."""

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
from coattend.report.views import LayerView, contrast, layer_views, pose_name

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
        """Return the mean over the channels, weighted by their contrast."""
        return np.asarray(np.average(values, axis=0, weights=self.weight))


def co_occurrence(model: nn.Module, images: Tensor) -> dict[str, Envelope]:
    """Return the envelope of every layer with more than one pose, on preprocessed images (n, channels, height, width).

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
    """Return weighted sums of mask and responses by relative pose, (channels, group), and of weights, (channels,)."""
    x = view.responses.double()
    spread = contrast(x)
    reference = x.argmax(dim=2)  # b c h w
    poses = torch.tensor(view.group.product, device=x.device)[reference].movedim(-1, 2)  # b c t h w: g0 t
    masks = torch.ones_like(x) if view.mask is None else view.mask.double()
    attention = masks.gather(2, poses) * spread.unsqueeze(2)
    responses = x.gather(2, poses) - x.amin(dim=2, keepdim=True)
    return attention.sum(dim=(0, 3, 4)), responses.sum(dim=(0, 3, 4)), spread.sum(dim=(0, 2, 3))


def _envelope(view: LayerView, attention: Tensor, responses: Tensor, weight: Tensor) -> Envelope:
    """Divide the sums by the weights; a channel whose poses never differ attends to all of them equally."""
    constant = weight == 0
    scale = weight.masked_fill(constant, 1).unsqueeze(1)
    weights = weight.cpu().numpy() if not constant.all() else np.ones(len(weight))
    return Envelope(
        view.group,
        (attention / scale).masked_fill(constant.unsqueeze(1), 1).cpu().numpy(),
        (responses / scale).masked_fill(constant.unsqueeze(1), 1).cpu().numpy(),
        weights,
        view.mask is not None,
        tuple(view.channel_name(c) for c in range(len(weight))),
    )


def envelope_figure(networks: Mapping[str, Mapping[str, Mapping[str, Envelope]]]) -> Figure:
    """Draw one row per network, one polar plot per layer, one colour per dataset.

    ``networks[network][dataset][layer]`` are envelopes, all networks on the same datasets. Of many layers a few are
    drawn, evenly spaced from the first to the last.
    """
    rows = [(network, _drawn_layers(by_data)) for network, by_data in networks.items()]
    columns = max(len(layers) for _, layers in rows)
    cell, left = 1.62, 0.25
    width, row_height, foot = max(6.5, left + columns * cell), cell + 0.35, 0.5
    height = len(rows) * row_height + foot
    with drawing(width, height) as figure:
        for r, (network, layers) in enumerate(rows):
            top = height - r * row_height
            figure.text(left / width, (top - 0.14) / height, network, weight="bold", size=9.5, va="center")
            for c, (layer_number, layer) in enumerate(layers):
                corner = ((left + c * cell + 0.28) / width, (top - row_height + 0.22) / height)
                axes = figure.add_axes((*corner, (cell - 0.6) / width, (cell - 0.6) / height), projection="polar")
                axes.set_title(f"layer {layer_number}", size=8, pad=7)
                for number, envelopes in enumerate(networks[network].values()):
                    _draw_envelope(axes, envelopes[layer], number, alone=len(networks[network]) == 1)  # type: ignore[arg-type]
        groups = {e.group for by_data in networks.values() for layers in by_data.values() for e in layers.values()}
        mirrors = any(group.mirrored.any() for group in groups)
        _draw_legend(figure, list(next(iter(networks.values()))), mirrors)
    return figure


def _drawn_layers(by_data: Mapping[str, Mapping[str, Envelope]]) -> list[tuple[int, str]]:
    layers = list(next(iter(by_data.values())))
    picked = np.unique(np.linspace(0, len(layers) - 1, min(COLUMNS, len(layers))).round().astype(int))
    return [(int(i) + 1, layers[i]) for i in picked]


def _draw_envelope(axes: PolarAxes, envelope: Envelope, number: int, alone: bool) -> None:
    """Draw an envelope; the first of several has the widest line, so that others that coincide with it are visible."""
    group, colour = envelope.group, COLOURS[number % len(COLOURS)]
    width = 1.8 if alone else (1.2 if number else 3.6)
    mirrors = group.mirrored
    axes.set_theta_zero_location("N")
    axes.set_ylim(0, 1.05)
    axes.set_yticks([0.5, 1.0], ["", ""])
    upright = np.flatnonzero(~mirrors)
    shown = upright if len(upright) <= 8 else upright[:: math.ceil(len(upright) / 8)]
    axes.set_xticks([_theta(group, int(t)) for t in shown], [pose_name(group, int(t)) for t in shown], size=6.5)
    axes.tick_params(pad=-2)
    axes.spines["polar"].set_visible(False)
    for part, marker, dashes in ((~mirrors, "o", "-"), (mirrors, "s", "--")):
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
        if dashes == "-" and number == 0:
            axes.fill(angle, mean, color=colour, alpha=0.15, zorder=1)
        responses = envelope.mean(envelope.responses)[closed]
        axes.plot(angle, responses, ":", color=colour, linewidth=max(1.1, 0.6 * width), zorder=3)


def _theta(group: FiniteGroup, t: int) -> float:
    return math.radians(group.angle(t))


def _draw_legend(figure: Figure, datasets: list[str], mirrors: bool) -> None:
    from matplotlib.lines import Line2D

    if len(datasets) == 1:
        colour, handles, on = COLOURS[0], [], f" on {datasets[0]}"
    else:
        colours = itertools.cycle(COLOURS)
        colour, on = INK, ""
        handles = [Line2D([], [], color=next(colours), linewidth=2, label=data) for data in datasets]
    handles.append(Line2D([], [], color=colour, linewidth=1.8, marker="o", markersize=3, label=f"attention E{on}"))
    if mirrors:
        handles.append(
            Line2D([], [], color=colour, linestyle="--", marker="s", markersize=3, label="E, mirrored poses")
        )
    handles.append(Line2D([], [], color=colour, linewidth=1.1, linestyle=":", label=f"responses R{on}"))
    figure.legend(handles=handles, loc="lower left", ncols=len(handles), fontsize=8, handlelength=2.2)
