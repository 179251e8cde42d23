"""The report: run folders in, one self-contained HTML page out."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coattend._files import check_target, make_folder, write_whole
from coattend.data import DataError, Dataset, load_data
from coattend.data.rotated_mnist import current_name
from coattend.models.classifier import load_trained
from coattend.models.records import RunError
from coattend.report.runs import Contest, common_folder, contests, find_runs
from coattend.report.scores import ScoreSection, score_sections
from coattend.report.sections import (
    ENVELOPE_IMAGES,
    EQUIVARIANCE_IMAGES,
    AngleSection,
    AttentionSection,
    EnvelopeSection,
    Gallery,
    LearningSection,
    MatrixSection,
    PicturedNetwork,
    angle_sections,
    attention_section,
    confusion_matrices,
    envelope_sections,
    equivariance_section,
    learning_section,
    matrix_sections,
)
from coattend.report.style import PlottingError
from coattend.report.tables import (
    ANGLE_COLUMNS,
    ERROR_COLUMNS,
    ConfusionMatrix,
    EquivarianceTable,
    ErrorTable,
    RecipeTable,
    error_table,
    recipe_table,
    summary,
)
from coattend.version import __version__

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup

PICTURED = 4  # networks that are drawn; of the others there are errors and curves
HEADINGS = {
    "errors": "Test error",
    "learning": "Learning",
    "confusion": "Confusion",
    "scores": "Classes",
    "angles": "Error by angle",
    "equivariance": "Equivariance",
    "attention": "Attention",
    "matrices": "Matrices",
    "envelopes": "Envelopes",
    "recipe": "Recipe and commands",
}  # the sections of Sections in the order of the page


@dataclass(frozen=True)
class Sections:
    """What the page shows; a section without content is left out."""

    errors: list[ErrorTable]
    learning: list[LearningSection]
    confusion: list[ConfusionMatrix]
    scores: list[ScoreSection]
    angles: list[AngleSection]
    equivariance: list[EquivarianceTable]
    attention: list[AttentionSection]
    matrices: list[MatrixSection]
    envelopes: list[EnvelopeSection]
    recipe: list[RecipeTable]

    @property
    def headings(self) -> list[tuple[str, str]]:
        """The name and the heading of every section that has content."""
        return [(name, heading) for name, heading in HEADINGS.items() if getattr(self, name)]


def write_report(
    paths: Sequence[Path],
    target: Path | None = None,
    envelope_data: Sequence[str] = (),
    pictures: Path | None = None,
    progress: Callable[[str], None] = lambda section: None,
    warn: Callable[[str], None] = lambda line: None,
) -> Path:
    """Write the page about the runs at or below ``paths`` and return its path.

    The same runs give the same bytes. ``envelope_data`` names the datasets of the envelopes, by default the one a
    network was trained on; ``pictures`` is a folder that gets every figure as PNG and SVG too. ``progress`` is told
    which section is next, ``warn`` which runs are left out and why.
    """
    template = _template()
    runs, damaged = find_runs(paths)
    target = target or (paths[0] if len(paths) == 1 else common_folder(runs)) / "report.html"
    check_target(target, overwrite=True)
    if pictures is not None:
        make_folder(pictures)
    together = contests(runs)
    notes = [*damaged, *_notes(together, target.resolve().parent)]
    for line in damaged:
        warn(line)
    networks = _pictured(together, notes)
    page = template.render(
        version=__version__,
        title=" and ".join(dict.fromkeys(contest.data for contest in together)),
        summary=summary(together, len(runs)),
        sections=_sections(together, networks, envelope_data, Gallery(pictures), notes, progress),
        notes=notes,
        command=_command(paths, target, envelope_data),
        error_columns=ERROR_COLUMNS,
        angle_columns=ANGLE_COLUMNS,
        equivariance_images=EQUIVARIANCE_IMAGES,
        envelope_images=ENVELOPE_IMAGES,
    )
    write_whole(target, page.encode())
    return target


def _sections(
    together: Sequence[Contest],
    networks: Sequence[PicturedNetwork],
    envelope_data: Sequence[str],
    gallery: Gallery,
    notes: list[str],
    progress: Callable[[str], None],
) -> Sections:
    datasets = {n.run.folder.path: [_data_for(name, n) for name in envelope_data] for n in networks}
    progress("report: learning curves")
    learning = [learning_section(contest, gallery) for contest in together]
    confusion = confusion_matrices(together, networks, notes)
    scores = score_sections(together, notes)
    progress("report: error by angle")
    angles = angle_sections(networks, gallery)
    progress("report: equivariance")
    equivariance = [equivariance_section(network) for network in networks]
    progress("report: attention")
    attention = [s for network in networks if (s := attention_section(network, gallery)) is not None]
    matrices = matrix_sections(networks, gallery)
    progress("report: envelopes")
    envelopes = envelope_sections(networks, datasets, gallery)
    return Sections(
        errors=[error_table(contest) for contest in together],
        learning=learning,
        confusion=confusion,
        scores=scores,
        angles=angles,
        equivariance=equivariance,
        attention=attention,
        matrices=matrices,
        envelopes=envelopes,
        recipe=[recipe_table(contest) for contest in together],
    )


def _template() -> Template:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as error:
        raise PlottingError.missing() from error
    loader = FileSystemLoader(Path(__file__).parent / "templates")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["breakable"] = _breakable
    return environment.get_template("report.html")


def _breakable(name: str) -> Markup:
    """Return a network's name that the page may break before an option, and nowhere else."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"([:,])", r"\1<wbr>", str(escape(name))))


def _command(paths: Sequence[Path], target: Path, envelope_data: Sequence[str]) -> str:
    """Return the command that writes this page, with paths relative to its folder, so that the page can be moved."""
    here = target.resolve().parent
    words = ["coattend", "report", *(os.path.relpath(path.resolve(), here) for path in paths), "--to", target.name]
    return shlex.join([*words, *(("--envelope-data", ",".join(envelope_data)) if envelope_data else ())])


def _notes(together: Sequence[Contest], here: Path) -> list[str]:
    """Return what is missing of each run, and which networks are not compared; folders are relative to the page's."""
    notes = []
    for contestant in (c for contest in together for c in contest.contestants):
        for run in contestant.runs:
            if run.missing is not None:
                folder = os.path.relpath(run.folder.path.resolve(), here)
                notes.append(f"{run.model}, seed {run.seed}, in {folder}: {run.missing}.")
        if contestant.note:
            notes.append(f"{contestant.model}: {contestant.note}.")
    return notes


def _pictured(together: Sequence[Contest], notes: list[str]) -> list[PicturedNetwork]:
    """Load the first networks that have weights, with their data; the notes say why others cannot be loaded."""
    shown = [run for contest in together for c in contest.contestants if (run := c.shown) is not None]
    if len(shown) > PICTURED:
        notes.append(f"Pictures are of the first {PICTURED} networks; make a report of fewer runs to see others.")
    networks = []
    loaded: dict[tuple[str, int, str], Dataset] = {}
    for run in shown[:PICTURED]:
        assert run.weights is not None
        try:
            trained = load_trained(run.weights)
        except ValueError as error:
            notes.append(f"{run.model}: no pictures, because its weights cannot be loaded. {error}")
            continue
        name = current_name(run.run.recipe.data, run.run.provenance)
        size, fit = trained.image_shape[1], trained.fit
        try:
            if (name, size, fit) not in loaded:
                loaded[name, size, fit] = load_data(name, size=size, fit=fit)
        except DataError as error:
            notes.append(f"{run.model}: no pictures, because its data cannot be loaded. {error}")
            continue
        networks.append(PicturedNetwork(run, trained, loaded[name, size, fit]))
    return networks


def _data_for(name: str, network: PicturedNetwork) -> Dataset:
    data = load_data(name, size=network.trained.image_shape[1], fit=network.trained.fit)
    if data.image_shape != network.trained.image_shape:
        raise RunError(
            f"{network.model} was trained on images {network.trained.image_shape}, {data.name} has {data.image_shape}; "
            "choose --envelope-data of the same number of channels."
        )
    return data
