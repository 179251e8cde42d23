"""``coattend attend``: what every layer of a trained network attends to in one image, in all its poses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from coattend._files import make_folder
from coattend.data.fitting import Fit, convert_channels, fit_images
from coattend.data.images import read_image
from coattend.groups import FiniteGroup
from coattend.models import network_name
from coattend.models.classifier import Classifier, load_trained
from coattend.report.attention_figure import attention_figure
from coattend.report.generated_figure import GeneratedFilters, generated_figure, generated_filters
from coattend.report.matrix_figure import has_matrices, matrices_figure
from coattend.report.style import save
from coattend.report.views import LayerView, has_attention, layer_views, posed

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class PosedViews:
    """The layers of a network for one image in every pose.

    - group: the group that moves the image
    - inputs: the image in every pose, (element, channels, height, width), from 0 to 255
    - row_names: each pose with the class that the network predicts for it
    - generated: the filters of layers that generate them
    """

    network: str
    group: FiniteGroup
    inputs: Tensor
    row_names: tuple[str, ...]
    views: tuple[LayerView, ...]
    generated: tuple[GeneratedFilters, ...] = ()

    def figure(self, layer: int) -> Figure:
        """Draw a layer, counted from 0."""
        title = f"{self.network}: layer {layer + 1} of {len(self.views)}"
        return attention_figure(self.views[layer], self.inputs, self.row_names, title, self.group)

    def filters_figure(self, layer: int) -> Figure:
        """Draw the filters of a layer that generates them, counted from 0."""
        filters = self.generated[layer]
        title = f"{self.network}: generated filters, layer {layer + 1} of {len(self.generated)}"
        reductions = {view.responses.shape[-1]: view.reduction for view in self.views}
        return generated_figure(filters, self.inputs, self.row_names, title, reductions.get(filters.size, 1))


def posed_views(trained: Classifier, image: Tensor) -> PosedViews:
    """Run a network on one image (channels, height, width) of bytes, rotated and mirrored by every group element."""
    network = trained.network
    group = network.acting_group
    inputs = posed(image.float(), group).clamp(0, 255)
    prepared = trained.preprocessing(inputs)
    views, generated = layer_views(network, prepared), generated_filters(network, prepared, group)
    rows = tuple(
        f"{'original' if g == 0 else group.describe(g)}\n{prediction.label}"
        for g, prediction in zip(group.elements, trained.predict_pixels(inputs), strict=True)
    )
    return PosedViews(network_name(network), group, inputs, rows, tuple(views), tuple(generated))


@dataclass(frozen=True)
class AttentionPictures:
    """The pictures that :func:`attend` wrote.

    - changes: how the image was adapted to the network, in words; empty if it was not
    - has_attention: over poses, or inside convolutions; without it the pictures show responses only
    - commutes_with_rotation: whether the preprocessing does; if not, rows that are brought back may differ
    """

    network: str
    changes: str
    has_attention: bool
    commutes_with_rotation: bool
    files: tuple[Path, ...]


def attend(file: str, image: Path, folder: Path) -> AttentionPictures:
    """Draw every layer of a trained network for one image file, and its attention matrices."""
    trained = load_trained(file)
    pixels, changes = fitted_image(read_image(image), trained.image_shape, trained.fit)
    make_folder(folder)
    posed = posed_views(trained, pixels)
    files = [path for i in range(len(posed.views)) for path in save(posed.figure(i), folder / f"layer{i + 1}")]
    numbers = range(len(posed.generated))
    files += [path for i in numbers for path in save(posed.filters_figure(i), folder / f"filters{i + 1}")]
    if has_matrices(trained.network):
        files += save(matrices_figure(trained.network), folder / "matrices")
    return AttentionPictures(
        posed.network,
        changes,
        has_attention(trained.network) or bool(posed.generated),
        trained.preprocessing.commutes_with_rotation,
        tuple(files),
    )


def fitted_image(image: Tensor, shape: tuple[int, int, int], fit: Fit = "resize") -> tuple[Tensor, str]:
    """Return an image of bytes in the shape that a network was trained on, and in words what was changed."""
    channels, size, _ = shape
    changes = []
    if image.shape[0] != channels:
        changes.append("colour is made grey" if channels == 1 else "grey is taken as colour")
        image = convert_channels(image, channels)
    height, width = image.shape[1:]
    if (height, width) != (size, size) and fit == "crop":
        changes.append(f"{size} x {size} pixels are cut out of the centre of {width} x {height}")
    elif (height, width) != (size, size):
        cut = "" if height == width else ", the longer side cut at both ends"
        changes.append(f"{width} x {height} pixels are scaled to {size} x {size}{cut}")
    return fit_images(image[None], size, fit)[0], "; ".join(changes)
