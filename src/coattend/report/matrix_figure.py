"""A figure of the learned attention matrices of every layer, with their structure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from coattend.nn import AttentionLayer
from coattend.report.attention_figure import mosaic, mosaic_centres
from coattend.report.style import SIGNED, bare, drawing
from coattend.report.views import pose_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CHANNELS = 10


def _layers_with_matrices(model: nn.Module) -> dict[str, tuple[AttentionLayer, Tensor]]:
    """Return the attention layers that have a matrix and more than one pose, with their matrices, by name."""
    layers = {
        name: (module, module.matrix())
        for name, module in model.named_modules()
        if isinstance(module, AttentionLayer) and module.group.order > 1
    }
    return {name: (module, matrix.detach()) for name, (module, matrix) in layers.items() if matrix is not None}


def has_matrices(model: nn.Module) -> bool:
    """Return whether there is a matrix to draw."""
    return bool(_layers_with_matrices(model))


def matrices_figure(model: nn.Module) -> Figure:
    """Draw one row per layer, one matrix per channel, and next to the first the pattern that all of them follow.

    Of more channels than fit, those with the largest off-diagonal entries are drawn.
    """
    layers = _layers_with_matrices(model)
    if not layers:
        raise ValueError("the network has no attention with matrices, so there are none to draw.")
    n = max(layer.group.order for layer, _ in layers.values())
    columns = min(CHANNELS, max(layer.channels for layer, _ in layers.values()))
    tile = 0.72 if n <= 4 else 0.95
    pattern, left, head, foot, gap = 1.7 if n <= 4 else 2.3, 1.25, 0.2, 0.45, 0.42
    width = left + pattern + 0.7 + columns * tile * 1.14 + 0.2
    height = head + max(len(layers) * (tile + gap), pattern + 1.1) + foot
    with drawing(width, height) as figure:
        first, first_matrix = next(iter(layers.values()))
        axes = figure.add_axes(
            ((left - 0.6) / width, 1 - (head + 0.25 + pattern) / height, pattern / width, pattern / height)
        )
        _draw_pattern(axes, first, first_matrix)
        limit = max(float(matrix.abs().max()) for _, matrix in layers.values())
        for row, (name, (layer, matrix)) in enumerate(layers.items()):
            matrices = matrix.double().cpu().numpy()
            loose = np.abs(matrices * (1 - np.eye(layer.group.order))).sum(axis=(1, 2))
            chosen = np.sort(np.argsort(-loose, kind="stable")[:columns])
            breadth = tile * (len(chosen) * 1.14 - 0.14)
            top = head + row * (tile + gap)
            corner = ((left + pattern + 0.7) / width, 1 - (top + gap * 0.6 + tile) / height)
            axes = figure.add_axes((*corner, breadth / width, tile / height))
            tiles = matrices[chosen][None]
            axes.imshow(mosaic(tiles), cmap=SIGNED, vmin=-limit, vmax=limit, interpolation="none", aspect="auto")
            names = [pose_name(layer.group, g) for g in layer.group.elements]
            axes.set_yticks(range(layer.group.order), names, size=5.5)
            axes.set_xticks(mosaic_centres(len(chosen), layer.group.order), [f"{c}" for c in chosen], size=7)
            axes.set_title(f"layer {row + 1}  {name}", size=7.5, loc="left", pad=2)
            bare(axes)
        _draw_scale(figure, left - 0.6, height - head - pattern - 0.85, pattern, width, height)
        note = "Rows: source pose; columns: target pose. Numbers below: channels"
        note += f", the {columns} with the largest off-diagonal entries." if first.channels > columns else "."
        figure.text(0.25 / width, 0.12 / height, note, size=8.5)
    return figure


def _draw_pattern(axes: Axes, layer: AttentionLayer, matrix: Tensor) -> None:
    """Draw which entries of the matrices are one parameter."""
    group = layer.group
    n = group.order
    index = tied_entries(matrix.double().cpu().numpy())
    axes.imshow(index, cmap="cividis", alpha=0.75, interpolation="none")
    for (row, column), entry in np.ndenumerate(index):
        shade = "white" if entry < index.max() / 2 else "black"
        axes.text(column, row, f"a{entry}", ha="center", va="center", size=8 if n <= 4 else 6.5, color=shade)
    names = [pose_name(group, g) for g in group.elements]
    axes.set_yticks(range(n), names, size=7)
    axes.set_xticks(range(n), names, size=7, rotation=0 if n <= 4 else 60)
    axes.set_title(f"pattern: {structure_name(layer, index)}", size=8.5, pad=5)
    bare(axes)


def tied_entries(matrices: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the number of the parameter at each entry of matrices (channels, group, group): equal in all channels.

    Parameters are numbered column by column; free matrices row by row.
    """
    order = matrices.shape[1]
    _, first, number = np.unique(matrices.T.reshape(order**2, -1), axis=0, return_index=True, return_inverse=True)
    if len(first) == order**2:
        return np.arange(order**2).reshape(order, order)
    return first.argsort().argsort()[number.ravel()].reshape(order, order).T


def structure_name(layer: AttentionLayer, index: NDArray[np.int64]) -> str:
    """Return in a word or two what ties the entries of the matrices together."""
    group = layer.group
    if index.max() + 1 == index.size:
        return "none, all free"
    if not layer.is_equivariant:
        return "tied, but not equivariant"
    commutes = (group.product == group.product.T).all()
    return "circulant" if commutes else f"blocks of {group.name}"


def _draw_scale(figure: Figure, left: float, bottom: float, breadth: float, width: float, height: float) -> None:
    scale = figure.add_axes((left / width, bottom / height, breadth / width, 0.1 / height))
    image = figure.axes[1].images[0]
    bar = figure.colorbar(image, cax=scale, orientation="horizontal")
    low, high = image.get_clim()
    bar.set_ticks([low, 0, high], labels=[f"{low:.2f}", "0", f"{high:.2f}"])
    bar.outline.set_visible(False)
    scale.tick_params(length=0, labelsize=7)
