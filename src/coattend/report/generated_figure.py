"""A figure of filters that a layer generates at one position, for an image in all poses."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from coattend.groups import FiniteGroup, transform_image
from coattend.nn import DynamicGroupConv2d
from coattend.nn.observe import Call, evaluating, recording
from coattend.report.attention_figure import (
    BETWEEN,
    GAP,
    ROUNDING,
    ROW_NAMES,
    draw_mosaic,
    draw_scale,
    image_tiles,
    mosaic_centres,
    shown_elements,
    wrapped,
)
from coattend.report.style import RATIOS, drawing
from coattend.report.views import pose_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TILE = 0.62  # inches
MARK = "#ff9f1c"


@dataclass(frozen=True)
class GeneratedFilters:
    """The filters of one slice at one position of an image, and where that position is in each pose of the image.

    - elements: the exact elements that move the image
    - places: row and column of the position in the map, (element, 2), and the size of the map
    - filters: (element, group, k, k)
    - back: the same, moved back to the first image: taps turned, poses relabelled
    """

    layer: str
    group: FiniteGroup
    elements: tuple[int, ...]
    places: Tensor
    size: int
    filters: Tensor
    back: Tensor

    @property
    def difference(self) -> float:
        """How far apart the filters are when moved back, relative to their range."""
        return float((self.back - self.back[0]).abs().max() / (self.back.amax() - self.back.amin()).clamp(min=1e-30))


def generated_filters(model: nn.Module, images: Tensor, group: FiniteGroup) -> list[GeneratedFilters]:
    """Return what each layer generates for an image in all poses of ``group``, preprocessed, (element, ...)."""

    def generated(call: Call) -> tuple[str, FiniteGroup, Tensor]:
        assert isinstance(call.layer, DynamicGroupConv2d)
        return call.name, call.layer.group, call.layer.filters(call.inputs[0])

    with evaluating(model), recording(model, generated, DynamicGroupConv2d, before=True) as calls:
        model(images)
    elements = tuple(g for g in shown_elements(group) if g in group.exact_elements)
    return [
        _at_one_place(name, own, filters[list(elements)], group, elements)
        for name, own, filters in calls
        if own == group and filters.shape[-1] > 1
    ]


def _at_one_place(
    name: str, own: FiniteGroup, filters: Tensor, group: FiniteGroup, elements: tuple[int, ...]
) -> GeneratedFilters:
    """Choose slice and position with the largest filters in the first image."""
    size = filters.shape[-1]
    strength = filters[0].square().sum(dim=(1, 2, 3))  # slice, height, width
    slice_, position = divmod(int(strength.argmax()), size * size)
    mark = torch.zeros(1, 1, size, size, dtype=filters.dtype)
    mark[0, 0, position // size, position % size] = 1
    places, shown, back = [], [], []
    for row, g in enumerate(elements):
        inverse = int(group.inverse[g])
        row_place, column_place = divmod(int(transform_image(mark, group, g).argmax()), size)
        taps = filters[row, slice_, :, :, :, row_place, column_place].permute(2, 0, 1)  # group, k, k
        relabelled = taps[group.product[g].tolist()]
        places.append((row_place, column_place))
        shown.append(taps)
        back.append(transform_image(relabelled[None], group, inverse)[0])
    return GeneratedFilters(name, own, elements, torch.tensor(places), size, torch.stack(shown), torch.stack(back))


def generated_figure(
    view: GeneratedFilters, inputs: Tensor, row_names: Sequence[str], title: str, reduction: int
) -> Figure:
    """Draw the filters; ``inputs`` are the images in all poses from 0 to 255, ``row_names`` those of all poses."""
    columns = shown_elements(view.group)
    rows, poses = len(view.elements), len(columns)
    breadths = [TILE, *(TILE * (poses * (1 + GAP) - GAP),) * 2]
    width = max(9.0, ROW_NAMES + sum(breadths) + 2 * BETWEEN + 0.3)
    mosaic_height = TILE * (rows * (1 + GAP) - GAP)
    height = mosaic_height + 2.2
    pictures = inputs[list(view.elements)]
    tiles = [image_tiles(pictures), *(t[:, columns].double().numpy() for t in (view.filters, view.back))]
    largest = float(view.filters.abs().max())
    with drawing(width, height) as figure:
        figure.text(0.3 / width, 1 - 0.28 / height, title, size=12, weight="bold", va="center")
        left, bottom = ROW_NAMES, 1.1 / height
        for name, tile, breadth in zip(("input", "filters", "filters brought back"), tiles, breadths, strict=True):
            axes = figure.add_axes((left / width, bottom, breadth / width, mosaic_height / height))
            is_input = name == "input"
            draw_mosaic(axes, tile, None if is_input else RATIOS, None if is_input else (-largest, largest))
            axes.set_title(name, pad=18, weight="bold")
            if is_input:
                centres = mosaic_centres(rows, tile.shape[2])
                names = [wrapped(row_names[g], ROW_NAMES - 0.1) for g in view.elements]
                axes.set_yticks(centres, names, size=8)
                axes.set_xticks([])
                offset = view.places.double().numpy() - (view.size - 1) / 2
                axes.scatter(
                    mosaic_centres(1, tile.shape[3])[0] + offset[:, 1] * reduction,
                    np.array(centres) + offset[:, 0] * reduction,
                    s=40,
                    facecolors="none",
                    edgecolors=MARK,
                )
            else:
                axes.xaxis.tick_top()
                axes.set_xticks(mosaic_centres(poses, tile.shape[3]), [pose_name(view.group, g) for g in columns])
                axes.set_yticks([])
                draw_scale(figure, axes, breadth, width, height)
            left += breadth + BETWEEN
        figure.text(0.3 / width, 0.14 / height, _caption(view, width), size=8.5, va="bottom")
    return figure


def _caption(view: GeneratedFilters, width: float) -> str:
    equal = view.difference < ROUNDING
    verdict = "equal, so they turned with the input" if equal else "not equal, so they did not turn with the input"
    text = (
        "Filters that the layer generates at the circle, from the features there; each column one pose of the "
        "features. Brought back: the filters of each row turned back, their poses relabelled. The rows are "
        f"{verdict}; they differ by {'at most' if equal else 'up to'} {view.difference:.0e} of the range. "
        f"Layer: {view.layer}."
    )
    return "\n".join(textwrap.wrap(text, int(width * 14.5)))
