"""The sections of a report that need a network and its data: what is measured, and its figures."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coattend.data import Dataset
from coattend.equivariance import equivariance_error
from coattend.models.classifier import Classifier
from coattend.report.attend import posed_views
from coattend.report.curves import (
    affordable_images,
    angle_figure,
    error_by_angle,
    is_logarithmic,
    learning_figure,
    repeats,
)
from coattend.report.envelope import Envelope, co_occurrence, envelope_figure
from coattend.report.matrix_figure import has_matrices, matrices_figure
from coattend.report.runs import Contest, ReportedRun
from coattend.report.style import inline_svg, save
from coattend.report.tables import (
    AngleLine,
    ConfusionMatrix,
    EnvelopeTable,
    EquivarianceTable,
    angle_line,
    confusion_matrix,
    envelope_table,
    equivariance_table,
)
from coattend.report.views import has_attention

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

EQUIVARIANCE_IMAGES = 4
ENVELOPE_IMAGES = 100
MEASURES = {"valid_accuracy": "validation error in percent", "train_loss": "training loss"}


@dataclass(frozen=True)
class PicturedNetwork:
    """A trained network that the report draws, with the data it was trained on."""

    run: ReportedRun
    trained: Classifier
    data: Dataset

    @property
    def model(self) -> str:
        """The network's name."""
        return self.run.model


class Gallery:
    """The figures of a page under names that differ; each is also saved into a folder if there is one."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.names: set[str] = set()

    def add(self, figure: Figure, name: str, description: str) -> Markup:
        """Return a figure as an element of the page."""
        from markupsafe import Markup

        unique, number = name, 2
        while unique in self.names:
            unique, number = f"{name}_{number}", number + 1
        self.names.add(unique)
        if self.folder is not None:
            save(figure, self.folder / unique)
        return Markup(inline_svg(figure, unique, description))


@dataclass(frozen=True)
class Chart:
    """A figure with the sentence below it."""

    svg: Markup
    caption: str


@dataclass(frozen=True)
class LearningSection:
    """The learning curves of one contest."""

    name: str
    charts: tuple[Chart, ...]


def learning_section(contest: Contest, gallery: Gallery) -> LearningSection:
    """Draw validation error and training loss of every run of a contest."""
    charts = []
    for measure, label in MEASURES.items():
        curves = {
            contestant.model: [[getattr(epoch, measure) for epoch in run.history] for run in contestant.runs]
            for contestant in contest.contestants
        }
        scale = "logarithmic" if is_logarithmic(curves, measure) else "linear"
        svg = gallery.add(learning_figure(curves, measure, label), f"learning_{measure}", f"{label} by epoch")
        charts.append(Chart(svg, f"{label.capitalize()} after each epoch; one line per run, {scale} scale."))
    return LearningSection(f"{contest.data}, recipe {contest.recipe}", tuple(charts))


def confusion_matrices(
    contests: Sequence[Contest], networks: Sequence[PicturedNetwork], notes: list[str]
) -> list[ConfusionMatrix]:
    """Count the predictions of every network whose class names are known; a note says why one is left out."""
    classes = {network.run.folder.path: network.trained.classes for network in networks}
    matrices = []
    for contestant in (contestant for contest in contests for contestant in contest.contestants):
        names = next((classes[run.folder.path] for run in contestant.runs if run.folder.path in classes), None)
        predictions = [run.predictions for run in contestant.runs if run.predictions is not None]
        if names is None or not predictions:
            continue
        if max(int(array.max()) for pair in predictions for array in pair) >= len(names):
            notes.append(f"{contestant.model}: no confusion matrix, because predictions.npz has other classes.")
            continue
        matrices.append(confusion_matrix(contestant.model, predictions, names))
    return matrices


@dataclass(frozen=True)
class AngleSection:
    """The error of networks by the angle of the input, on one dataset."""

    data: str
    chart: Chart
    lines: tuple[AngleLine, ...]


def angle_sections(networks: Sequence[PicturedNetwork], gallery: Gallery) -> list[AngleSection]:
    """Measure and draw the error by angle, with one section per dataset."""
    by_data: dict[str, list[PicturedNetwork]] = {}
    for network in networks:
        if network.trained.task.name == "classification":
            by_data.setdefault(network.data.name, []).append(network)
    sections = []
    for data, members in by_data.items():
        images = min(
            len(members[0].data.test), *(affordable_images(member.trained, len(networks)) for member in members)
        )
        test = members[0].data.test.head(images).in_memory()
        errors = {member.model: error_by_angle(member.trained, test.images, test.labels) for member in members}
        svg = gallery.add(angle_figure(errors), "angles", "test error by angle of the input")
        exact = [member.model for member in members if repeats(member.trained)]
        lines = tuple(angle_line(model, images, values) for model, values in errors.items())
        sections.append(AngleSection(data, Chart(svg, _angle_caption(images, exact)), lines))
    return sections


def _angle_caption(images: int, exact: Sequence[str]) -> str:
    caption = f"On the first {images} test images, to be done in seconds; one image is {100 / images:.1f} percent."
    if exact:
        caption += (
            f" Quarter turns leave the logits of {' and '.join(exact)} as they are (next section), so 0° to 85° "
            "were measured and repeated."
        )
    return caption


def equivariance_section(network: PicturedNetwork) -> EquivarianceTable:
    """Measure the equivariance of a network in double precision on a few test images."""
    trained = network.trained
    group = trained.network.acting_group
    images = trained.preprocessing(network.data.test.head(EQUIVARIANCE_IMAGES).in_memory().images).double()
    errors = equivariance_error(copy.deepcopy(trained.network).double(), images, group)
    return equivariance_table(network.run, group, errors)


@dataclass(frozen=True)
class AttentionSection:
    """Pictures of some layers of one network."""

    model: str
    remark: str
    pictures: tuple[Markup, ...]


def attention_section(network: PicturedNetwork, gallery: Gallery) -> AttentionSection | None:
    """Draw the first and the middle attention layer on the first test image; without attention the first layer.

    Return None for a network without layers on a group.
    """
    posed = posed_views(network.trained, network.data.test.head(1).in_memory().images[0])
    if not posed.views:
        return None
    attentive = has_attention(network.trained.network)
    layers = sorted({0, len(posed.views) // 2}) if attentive else [0]
    content = "masks" if attentive else "responses"
    pictures = tuple(
        gallery.add(
            posed.figure(layer),
            f"attention_{_file_name(network.model)}_layer{layer + 1}",
            f"{content} of layer {layer + 1} of {network.model} for an image in all poses, and brought back to the "
            "first",
        )
        for layer in layers
    )
    remark = "" if attentive else "This network has no attention; its responses are shown."
    return AttentionSection(network.model, remark, pictures)


@dataclass(frozen=True)
class MatrixSection:
    """The learned matrices of one network."""

    model: str
    svg: Markup


def matrix_sections(networks: Sequence[PicturedNetwork], gallery: Gallery) -> list[MatrixSection]:
    """Draw the matrices of every network that has some."""
    return [
        MatrixSection(
            network.model,
            gallery.add(
                matrices_figure(network.trained.network),
                f"matrices_{_file_name(network.model)}",
                f"learned attention matrices of {network.model}, layer by layer",
            ),
        )
        for network in networks
        if has_matrices(network.trained.network)
    ]


@dataclass(frozen=True)
class EnvelopeSection:
    """The envelopes of networks on the same datasets: one figure, and a table for each network and dataset."""

    svg: Markup
    tables: tuple[EnvelopeTable, ...]


def envelope_sections(
    networks: Sequence[PicturedNetwork], datasets: Mapping[Path, Sequence[Dataset]], gallery: Gallery
) -> list[EnvelopeSection]:
    """Measure and draw envelopes on the datasets of each run's folder, by default on the one it was trained on."""
    by_data: dict[tuple[str, ...], dict[str, dict[str, dict[str, Envelope]]]] = {}
    for network in networks:
        if network.trained.network.group.order == 1:
            continue
        envelopes = {
            data.name: co_occurrence(
                network.trained.network,
                network.trained.preprocessing(data.test.head(ENVELOPE_IMAGES).in_memory().images),
            )
            for data in datasets[network.run.folder.path] or [network.data]
        }
        rows = by_data.setdefault(tuple(envelopes), {})
        name = network.model if network.model not in rows else f"{network.model} ({network.run.run.recipe.full_name})"
        rows[name] = envelopes
    sections = []
    for names, rows in by_data.items():
        description = f"envelopes of {', '.join(rows)} on {', '.join(names)}"
        tables = tuple(
            envelope_table(model, name, envelopes)
            for model, datasets_of_model in rows.items()
            for name, envelopes in datasets_of_model.items()
        )
        sections.append(EnvelopeSection(gallery.add(envelope_figure(rows), "envelopes", description), tables))
    return sections


def _file_name(model: str) -> str:
    return "".join(c if c.isalnum() or c in "=.-" else "_" for c in model)
