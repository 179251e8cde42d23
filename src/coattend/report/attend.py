"""A trained network looking at one image in all poses: the pictures of `coattend attend`, and those of the report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from coattend._files import make_folder
from coattend.data.images import Fit, fitted, read_image, recoloured
from coattend.groups import FiniteGroup
from coattend.models import network_name
from coattend.models.classifier import Classifier, load_trained
from coattend.report.attention_figure import attention_figure
from coattend.report.matrix_figure import attention_layers, matrices_figure
from coattend.report.style import save
from coattend.report.views import LayerView, layer_views, posed, posing_group

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Look:
    """What a network saw: the inputs (element, channels, height, width) from 0 to 255, and its layers."""

    name: str
    group: FiniteGroup
    inputs: Tensor
    row_names: tuple[str, ...]
    views: tuple[LayerView, ...]

    def figure(self, layer: int) -> Figure:
        """The picture of a layer, counted from 0."""
        title = f"{self.name}: layer {layer + 1} of {len(self.views)}"
        return attention_figure(self.views[layer], self.inputs, self.row_names, title, self.group)


def look(trained: Classifier, image: Tensor) -> Look:
    """Turn and mirror one image (channels, height, width) of bytes and watch the network."""
    network = trained.network
    group = posing_group(network.group)
    inputs = posed(image.float(), group).clamp(0, 255)
    views = layer_views(network, trained.preprocessing(inputs))
    rows = tuple(
        f"{'as it is' if g == 0 else group.describe(g)}\n{prediction.label}"
        for g, prediction in zip(group.elements, trained.predict(inputs), strict=True)
    )
    return Look(network_name(network), network.group, inputs, rows, tuple(views))


def attend(file: str, image: Path, folder: Path) -> Iterator[str]:
    """Draw every layer of a trained network for one image file; yields lines that say what was changed and written."""
    trained = load_trained(file)
    pixels, changes = fitted_image(read_image(image), trained.image_shape, trained.fit)
    if changes:
        yield f"{image}: {changes}"
    make_folder(folder)
    seen = look(trained, pixels)
    if not attention_layers(trained.network):
        yield f"{seen.name} has no attention, so the pictures show its responses only"
    if not trained.preprocessing.commutes_with_rotation:
        yield "its preprocessing does not commute with rotation, so rows that are brought back may differ"
    for layer in range(len(seen.views)):
        yield from _written(seen.figure(layer), folder / f"layer{layer + 1}")
    if attention_layers(trained.network):
        yield from _written(matrices_figure(trained.network), folder / "matrices")


def fitted_image(image: Tensor, shape: tuple[int, int, int], fit: Fit = "resize") -> tuple[Tensor, str]:
    """An image of bytes in the shape a network was trained on, and in words what had to be changed."""
    channels, size, _ = shape
    changes = []
    if image.shape[0] != channels:
        changes.append("colour is made grey" if channels == 1 else "grey is taken as colour")
        image = recoloured(image, channels)
    height, width = image.shape[1:]
    if (height, width) != (size, size) and fit == "crop":
        changes.append(f"{size} x {size} pixels are cut out of the centre of {width} x {height}")
    elif (height, width) != (size, size):
        cut = "" if height == width else ", the longer side cut at both ends"
        changes.append(f"{width} x {height} pixels are scaled to {size} x {size}{cut}")
    return fitted(image[None], size, fit)[0], "; ".join(changes)


def _written(figure: Figure, path: Path) -> Iterator[str]:
    for target in save(figure, path):
        yield f"wrote {target}"
