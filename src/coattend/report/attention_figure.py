"""A figure of one layer for an image in all poses: the responses, and the mask of its attention."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coattend.groups import FiniteGroup
from coattend.report.style import AMOUNTS, RATIOS, bare, drawing
from coattend.report.views import LayerPicture, LayerView, dominant_pose, layer_picture, pose_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW_NAMES = 1.4  # inches for the names of the rows
CHARACTER = 0.073  # inches per character of size 8, on average
LINE = 0.14  # inches per line
DIMMED = 0.62  # images under arrows
GAP = 0.12  # between the tiles of a mosaic, in tiles
BETWEEN = 0.4  # between mosaics, in inches
UPRIGHT, MIRRORED = "#ff9f1c", "#4cc9f0"
CROWDED = 16  # arrows in a row, at most about this many
MOST_SHOWN = 16  # poses in rows and columns, at most
ROUNDING = 1e-3  # differences below this are attributed to rounding
FAINT = 0.3  # arrows below this share of the strongest are left out


def attention_figure(
    view: LayerView, inputs: Tensor, row_names: Sequence[str], title: str, group: FiniteGroup
) -> Figure:
    """Draw one channel of one layer for an image in all poses of ``group``.

    ``inputs`` are the images (element, channels, height, width) from 0 to 255 that ``view`` was made from.
    """
    elements, columns = shown_elements(group), shown_elements(view.group)
    picture = layer_picture(view, group).selected(elements, columns)
    inputs, row_names = inputs[elements], [row_names[g] for g in elements]
    rows, poses = len(elements), len(columns)
    tile = 1.2 if poses == 1 else 0.7 if poses <= 4 else 0.52
    blocks = 2 if picture.mask is None else 3
    width = max(9.5, ROW_NAMES + tile + blocks * (BETWEEN + tile * (poses * (1 + GAP) - GAP)) + 0.3)
    strip = min(3.05, (width - 0.48) / rows)
    titles = [wrapped(name, strip - 0.12) for name in row_names]
    above = LINE * max(title.count("\n") + 1 for title in titles)
    mosaic_height = tile * (rows * (1 + GAP) - GAP)
    heights = {
        "title": 0.55 + above,
        "strip": strip,
        "head": 0.6 if poses > 1 else 0.75,
        "mosaic": mosaic_height,
        "foot": 1.35,
    }
    height = sum(heights.values())
    with drawing(width, height) as figure:
        figure.text(0.3 / width, 1 - 0.28 / height, title, size=12, weight="bold", va="center")
        strip_bottom = height - heights["title"] - strip
        fields = [arrow_field(view, group, inputs.shape[-1], g) for g in elements]
        reach = 0.95 * view.reduction * arrow_step(view.responses.shape[-1])
        _draw_arrows(figure, inputs, titles, fields, reach, strip, strip_bottom / height)
        bottom = heights["foot"] / height
        left = ROW_NAMES
        for name, tiles, colours in _columns(picture, inputs, "mask" if view.multiplies else "share"):
            breadth = tile * (tiles.shape[1] * (1 + GAP) - GAP)
            axes = figure.add_axes((left / width, bottom, breadth / width, mosaic_height / height))
            limits = (min(0.0, np.nanmin(tiles)), max(1.0, np.nanmax(tiles))) if colours == RATIOS else None
            draw_mosaic(axes, tiles, colours, limits)
            axes.set_title(name, pad=18, weight="bold")
            if colours is None:
                names = [wrapped(name, ROW_NAMES - 0.1, most_lines=int(tile / 0.12)) for name in row_names]
                axes.set_yticks(mosaic_centres(rows, tiles.shape[2]), names, size=8 if tile > 0.6 else 7)
                axes.set_xticks([])
            else:
                axes.xaxis.tick_top()
                names = [pose_name(view.group, g) for g in columns]
                axes.set_xticks(mosaic_centres(poses, tiles.shape[3]), names, size=8 if poses <= 4 else 7)
                axes.set_yticks([])
                draw_scale(figure, axes, breadth, width, height)
            left += breadth + BETWEEN
        figure.text(0.3 / width, 0.14 / height, _caption(picture, view, group, width), size=8.5, va="bottom")
    return figure


def _columns(picture: LayerPicture, inputs: Tensor, shown: str) -> list[tuple[str, NDArray[np.float64], str | None]]:
    """Return title, tiles (input pose, pose, height, width) and colour map of each mosaic; None for the inputs."""
    space = "\n" if picture.responses.shape[1] == 1 else " "  # a single pose is narrower than its title
    columns: list[tuple[str, NDArray[np.float64], str | None]] = [
        ("input", image_tiles(inputs), None),
        (f"responses{space}of {picture.channel}", picture.responses.double().numpy(), AMOUNTS),
    ]
    if picture.mask is None:
        return [*columns, (f"responses{space}brought back", picture.back.double().numpy(), AMOUNTS)]
    mask = (shown, picture.mask.double().numpy(), RATIOS)
    return [*columns, mask, (f"{shown}s{space}brought back", picture.back.double().numpy(), RATIOS)]


def shown_elements(group: FiniteGroup) -> list[int]:
    """Return the elements in a figure: all, or evenly spaced ones of a large group, which no page has room for."""
    return list(group.elements[:: -(-group.order // MOST_SHOWN)])


def arrow_field(view: LayerView, group: FiniteGroup, image_size: int, row: int) -> NDArray[np.float64]:
    """Return the arrows of one input pose: x, y (pixels, y down), dx, dy (y down, length 0 to 1), mirrored (0 or 1)."""
    pose, strength = (t[row].double().numpy() for t in dominant_pose(view))
    if view.group.order == 1 or strength.max() == 0:
        return np.zeros((0, 5))
    assert group.planar is not None
    height, width = pose.shape
    y, x = np.mgrid[:height, :width]
    keep = strength >= FAINT * strength.max()
    step = arrow_step(width)
    keep &= _on_lattice(x - (width - 1) / 2, step) & _on_lattice(y - (height - 1) / 2, step)
    elements = pose[keep].astype(int)
    matrices = group.planar[elements]
    length = strength[keep] / strength.max()
    centre = (image_size - 1) / 2
    return np.stack(
        [
            (x[keep] - (width - 1) / 2) * view.reduction + centre,
            (y[keep] - (height - 1) / 2) * view.reduction + centre,
            length * matrices[:, 0, 1],  # where the element sends "up"
            -length * matrices[:, 1, 1],
            group.mirrored[elements],
        ],
        axis=1,
    )


def arrow_step(width: int) -> int:
    """Return the distance of two arrows, in positions of a map; odd for an even width, see :func:`_on_lattice`."""
    step = -(-width // CROWDED)
    return step if width % 2 else step + 1 - step % 2


def _on_lattice(offsets: NDArray[np.float64], step: int) -> NDArray[np.bool_]:
    """Select offsets from the centre that are ``step`` apart and symmetric, so that they rotate with the image.

    Offsets are whole numbers for an odd width and half-integers for an even one, which an odd step reaches.
    """
    start = 0.0 if float(offsets.flat[0]).is_integer() else step / 2
    return np.asarray((offsets - start) % step == 0)


def wrapped(name: str, inches: float, most_lines: int = 4) -> str:
    """Break a name into lines of size 8 of the given width; the rest is replaced by an ellipsis."""
    lines = [line for part in name.split("\n") for line in textwrap.wrap(part, max(4, int(inches / CHARACTER)))]
    if len(lines) > most_lines:
        lines = [*lines[: most_lines - 1], f"{lines[most_lines - 1][:-1]}…"]
    return "\n".join(lines)


def mosaic(tiles: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return tiles (rows, columns, height, width, ...) as one array with gaps that are not a number."""
    rows, columns, height, width = tiles.shape[:4]
    step_y, step_x = height + _gap(height), width + _gap(width)
    shape = (rows * step_y - _gap(height), columns * step_x - _gap(width), *tiles.shape[4:])
    whole = np.full(shape, np.nan)
    for r in range(rows):
        for c in range(columns):
            whole[r * step_y : r * step_y + height, c * step_x : c * step_x + width] = tiles[r, c]
    return whole


def _gap(pixels: int) -> int:
    return max(1, round(pixels * GAP))


def mosaic_centres(count: int, pixels: int) -> list[float]:
    """Return the centres of a mosaic's tiles along one axis."""
    return [(pixels - 1) / 2 + i * (pixels + _gap(pixels)) for i in range(count)]


def image_tiles(inputs: Tensor) -> NDArray[np.float64]:
    """Return images as tiles with one or three colour channels, from 0 to 1."""
    return (inputs.double().numpy() / 255).clip(0, 1).transpose(0, 2, 3, 1)[:, None]


def draw_mosaic(
    axes: Axes, tiles: NDArray[np.float64], colours: str | None, limits: tuple[float, float] | None
) -> None:
    """Draw tiles (rows, columns, height, width) in colours, or images (rows, 1, height, width, channels) without."""
    whole = mosaic(tiles)
    if colours is None:
        outside = np.isnan(whole[..., :1])
        whole = np.where(outside, 1.0, whole)
        whole = np.concatenate([np.broadcast_to(whole, (*whole.shape[:2], 3)), 1.0 - outside], axis=2)
    low, high = limits or (None, None)
    axes.imshow(whole, cmap=colours, vmin=low, vmax=high, interpolation="none", aspect="auto")
    bare(axes)


def draw_scale(figure: Figure, axes: Axes, breadth: float, width: float, height: float) -> None:
    """Draw the scale of the colours below a mosaic of a breadth in inches."""
    box = axes.get_position()
    scale = figure.add_axes((box.x0, box.y0 - 0.2 / height, min(breadth, 1.6) / width, 0.09 / height))
    bar = figure.colorbar(axes.images[0], cax=scale, orientation="horizontal")
    low, high = axes.images[0].get_clim()
    bar.set_ticks([low, high], labels=[f"{low:.3g}", f"{high:.3g}"])
    bar.outline.set_visible(False)
    scale.tick_params(length=0, labelsize=7)


def _draw_arrows(
    figure: Figure,
    inputs: Tensor,
    titles: Sequence[str],
    fields: Sequence[NDArray[np.float64]],
    reach: float,
    strip: float,
    bottom: float,
) -> None:
    width, height = figure.get_size_inches()
    size = inputs.shape[-1]
    for row, (title, field) in enumerate(zip(titles, fields, strict=True)):
        side = strip - 0.12
        axes = figure.add_axes(((0.3 + row * strip) / width, bottom, side / width, side / height))
        tile = image_tiles(inputs[row : row + 1])[0, 0]
        axes.imshow(DIMMED * np.broadcast_to(tile, (*tile.shape[:2], 3)), interpolation="none")
        axes.set_title(title, size=8, pad=3)
        for kind, colour in ((0, UPRIGHT), (1, MIRRORED)):
            x, y, dx, dy = field[field[:, 4] == kind, :4].T
            axes.quiver(
                x, y, reach * dx, reach * dy, color=colour, angles="xy", scale_units="xy", scale=1, pivot="mid",
                units="inches", width=0.016, headwidth=4, headlength=4, headaxislength=3.5,
            )  # fmt: skip
        axes.set_xlim(-0.5, size - 0.5)
        axes.set_ylim(size - 0.5, -0.5)
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_visible(False)


def _caption(picture: LayerPicture, view: LayerView, group: FiniteGroup, width: float) -> str:
    mirrors = bool(group.mirrored.any())
    if view.group.order > 1:
        arrows = "Arrows: the pose with the strongest responses at a position, summed over channels; 0° points up."
        arrows += " Orange: not mirrored, blue: mirrored." if mirrors else ""
    else:
        arrows = "This network has one pose only, so there are no orientations to show."
    middle = "Each image is labelled with its pose and the predicted class. Each row is one input"
    middle += f"; each column one of the {view.group.order} poses of the same filter." if view.group.order > 1 else "."
    if group.order > MOST_SHOWN:
        middle += f" {len(shown_elements(group))} of the {group.order} poses are shown."
    if picture.mask is None:
        kind = "This network has no attention: only its responses are shown."
        back = "Brought back: each row moved back to the first input, its poses relabelled."
    else:
        name = "mask" if view.multiplies else "share"
        kind = "Mask: the factor by which attention multiplies each response."
        if not view.multiplies:
            kind = "Share: the attention that each response gets, as a mean over all that attend to it"
            kind += "; along positions, relative to even attention."
        back = f"Brought back: the {name}s of each row moved back to the first input, poses relabelled."
    end = f"{_differences(picture, group)} Layer: {picture.layer}."
    return "\n".join(textwrap.wrap(f"{arrows} {middle} {kind} {back} {end}", int(width * 14.5)))


def _differences(picture: LayerPicture, group: FiniteGroup) -> str:
    """Return in words how far apart the rows are that were brought back."""
    interpolated = picture.interpolated_difference
    rows = "The rows" if interpolated is None else f"The rows of the {len(group.exact_elements)} exact elements"
    if picture.difference < ROUNDING:
        text = f"{rows} are equal, so they moved with the input; they differ by at most {picture.difference:.0e}"
    else:
        text = (
            f"{rows} are not equal, so they did not move with the input; they differ by up to {picture.difference:.0%}"
        )
    text += " of the range."
    if interpolated is not None:
        text += " The other rows are interpolated, and left out where they were outside of the frame; they differ by up"
        text += f" to {interpolated:.0%}."
    return text
