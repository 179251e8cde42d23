"""The report: run folders in, one self-contained HTML page out."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coattend._files import check_target, make_folder, write_whole
from coattend.data import DataError, Dataset, load_data
from coattend.equivariance import equivariance_error
from coattend.models.classifier import Classifier, load_trained
from coattend.report import sections
from coattend.report.attend import look
from coattend.report.curves import (
    affordable_images,
    angle_figure,
    error_by_angle,
    is_logarithmic,
    learning_figure,
    repeats,
)
from coattend.report.envelope import Envelope, co_occurrence, envelope_figure
from coattend.report.matrix_figure import attention_layers, matrices_figure
from coattend.report.runs import Contest, Run, common_folder, contests, find_runs
from coattend.report.style import PlottingError, inline_svg, save
from coattend.report.views import posing_group
from coattend.train.run_folder import RunError
from coattend.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURED = 4  # networks whose weights are looked into; of the others there are errors and curves
EQUIVARIANCE_IMAGES = 4
ENVELOPE_IMAGES = 100
PARTS = {
    "errors": "Test error",
    "learning": "Learning",
    "confusion": "Confusion",
    "angles": "Error by angle",
    "equivariance": "Equivariance",
    "attention": "Attention",
    "matrices": "Matrices",
    "envelopes": "Envelopes",
    "recipe": "Recipe and commands",
}


@dataclass(frozen=True)
class Pictured:
    """A network that is looked into."""

    run: Run
    trained: Classifier
    data: Dataset

    @property
    def model(self) -> str:
        """The network's name."""
        return self.run.model


def write_report(
    paths: Sequence[Path],
    target: Path | None = None,
    envelope_data: Sequence[str] = (),
    pictures: Path | None = None,
    progress: Callable[[str], None] = lambda part: None,
    warn: Callable[[str], None] = lambda line: None,
) -> Path:
    """Write the page about the runs at or below ``paths``; returns where.

    The same runs give the same bytes. ``envelope_data`` names the data sets of the envelopes, by default the one a
    network was trained on; ``pictures`` is a folder that gets every figure as PNG and SVG too. ``progress`` is told
    which part is being made, ``warn`` which runs are left out and why.
    """
    environment = _environment()
    runs, damaged = find_runs(paths)
    target = target or (paths[0] if len(paths) == 1 else common_folder(runs)) / "report.html"
    check_target(target, overwrite=True)
    if pictures is not None:
        make_folder(pictures)
    drawn = _Drawn(pictures)
    together = contests(runs)
    notes = [*damaged, *_notes(together, target.resolve().parent)]
    for line in damaged:
        warn(line)
    pictured = _pictured(together, notes)
    sets = {p.run.folder.path: [_data_for(name, p) for name in envelope_data] for p in pictured}
    context: dict[str, Any] = {
        "version": __version__,
        "title": " and ".join(dict.fromkeys(contest.data for contest in together)),
        "summary": sections.summary(together, len(runs)),
        "tables": [sections.error_table(contest) for contest in together],
        "error_columns": sections.ERROR_COLUMNS,
        "angle_columns": sections.ANGLE_COLUMNS,
        "equivariance_images": EQUIVARIANCE_IMAGES,
        "envelope_images": ENVELOPE_IMAGES,
        "recipes": [sections.recipe_part(contest) for contest in together],
        "command": _command(paths, target, envelope_data),
        "notes": notes,
    }
    for part, make in (
        ("learning", lambda: _learning(together, drawn)),
        ("confusions", lambda: _confusions(together, pictured, notes)),
        ("angles", lambda: _angles(pictured, drawn)),
        ("equivariance", lambda: [_equivariance(p) for p in pictured]),
        ("attention", lambda: [_attention(p, drawn) for p in pictured]),
        ("matrices", lambda: _matrices(pictured, drawn)),
        ("envelopes", lambda: _envelopes(pictured, sets, drawn)),
    ):
        progress(f"making the report: {part}")
        context[part] = make()
    shown = {"errors", "learning", "recipe"} | {"confusion" for _ in context["confusions"]}
    shown |= {part for part in ("angles", "equivariance", "attention", "matrices", "envelopes") if context[part]}
    context["parts"] = [(part, name) for part, name in PARTS.items() if part in shown]
    write_whole(target, environment.get_template("report.html").render(context).encode())
    return target


class _Drawn:
    """Figures on their way into the page, and into a folder if one was asked for."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.names: set[str] = set()

    def __call__(self, figure: Figure, name: str, description: str) -> Any:
        from markupsafe import Markup

        place = 2
        unique = name
        while unique in self.names:
            unique, place = f"{name}_{place}", place + 1
        self.names.add(unique)
        if self.folder is not None:
            save(figure, self.folder / unique)
        return Markup(inline_svg(figure, unique, description))


def _environment() -> Any:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as error:
        raise PlottingError.missing() from error
    loader = FileSystemLoader(Path(__file__).parent / "templates")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["breakable"] = _breakable
    return environment


def _breakable(name: str) -> Any:
    """A network's name that the page may break before an option, and nowhere else."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"([:,])", r"\1<wbr>", str(escape(name))))


def _command(paths: Sequence[Path], target: Path, envelope_data: Sequence[str]) -> str:
    """What makes this page, with paths as seen from its folder, so that the page does not depend on where it lies."""
    here = target.resolve().parent
    words = ["coattend", "report", *(os.path.relpath(path.resolve(), here) for path in paths), "--to", target.name]
    return shlex.join([*words, *(("--envelope-data", ",".join(envelope_data)) if envelope_data else ())])


def _notes(together: Sequence[Contest], here: Path) -> list[str]:
    """What is missing, run by run, and networks that cannot be compared; folders as seen from the page's."""
    notes = []
    for contestant in (c for contest in together for c in contest.contestants):
        for run in contestant.runs:
            if run.missing is not None:
                folder = os.path.relpath(run.folder.path.resolve(), here)
                notes.append(f"{run.model}, seed {run.seed}, in {folder}: {run.missing}.")
        if contestant.note:
            notes.append(f"{contestant.model}: {contestant.note}.")
    return notes


def _pictured(together: Sequence[Contest], notes: list[str]) -> list[Pictured]:
    """The first networks that have weights, with their data; what stands in the way of others goes to the notes."""
    shown = [run for contest in together for c in contest.contestants if (run := c.shown) is not None]
    if len(shown) > PICTURED:
        notes.append(f"Pictures are of the first {PICTURED} networks; make a report of fewer runs to see others.")
    found = []
    loaded: dict[tuple[str, int, str], Dataset] = {}
    for run in shown[:PICTURED]:
        assert run.weights is not None
        try:
            trained = load_trained(run.weights)
        except ValueError as error:
            notes.append(f"{run.model}: no pictures, because its weights cannot be loaded. {error}")
            continue
        name, size, fit = str(run.recipe["data"]), trained.image_shape[1], trained.fit
        try:
            if (name, size, fit) not in loaded:
                loaded[name, size, fit] = load_data(name, size=size, fit=fit)
        except DataError as error:
            notes.append(f"{run.model}: no pictures, because its data cannot be loaded. {error}")
            continue
        found.append(Pictured(run, trained, loaded[name, size, fit]))
    return found


def _learning(together: Sequence[Contest], drawn: _Drawn) -> list[dict[str, Any]]:
    measures = {"valid_accuracy": "validation error in percent", "train_loss": "training loss"}
    sections = []
    for contest in together:
        histories = {contestant.model: [run.history for run in contestant.runs] for contestant in contest.contestants}
        charts = []
        for measure, label in measures.items():
            scale = "logarithmic" if is_logarithmic(histories, measure) else "linear"
            figure = drawn(learning_figure(histories, measure, label), f"learning_{measure}", f"{label} by epoch")
            caption = f"{label.capitalize()} after each epoch; one line per run, {scale} scale."
            charts.append({"svg": figure, "caption": caption})
        sections.append({"name": f"{contest.data}, recipe {contest.recipe}", "charts": charts})
    return sections


def _confusions(together: Sequence[Contest], pictured: Sequence[Pictured], notes: list[str]) -> list[dict[str, Any]]:
    classes = {p.run.folder.path: p.trained.classes for p in pictured}
    found = []
    for contest in together:
        for contestant in contest.contestants:
            names = next((classes[run.folder.path] for run in contestant.runs if run.folder.path in classes), None)
            kept = [run.predictions for run in contestant.runs if run.predictions is not None]
            if names is None or not kept:
                continue
            if max(int(array.max()) for pair in kept for array in pair) >= len(names):
                notes.append(f"{contestant.model}: no confusion matrix, because predictions.npz has other classes.")
                continue
            found.append(sections.confusion(contestant.model, kept, names))
    return found


def _angles(pictured: Sequence[Pictured], drawn: _Drawn) -> list[dict[str, Any]]:
    by_data: dict[str, list[Pictured]] = {}
    for p in pictured:
        by_data.setdefault(p.data.name, []).append(p)
    parts = []
    for data, members in by_data.items():
        images = min(affordable_images(p.trained, len(pictured)) for p in members)
        errors = {
            p.model: error_by_angle(p.trained, p.data.test.images[:images], p.data.test.labels[:images])
            for p in members
        }
        measured = min(images, len(members[0].data.test))
        repeated = [p.model for p in members if repeats(p.trained)]
        caption = (
            f"On the first {measured} test images, to be done in seconds; one image is {100 / measured:.1f} percent."
        )
        if repeated:
            caption += (
                f" Quarter turns leave the logits of {' and '.join(repeated)} as they are (next section), so 0° to 85° "
                "were measured and repeated."
            )
        parts.append(
            {
                "data": data,
                "svg": drawn(angle_figure(errors), "angles", "test error by angle of the input"),
                "caption": caption,
                "lines": [sections.angle_line(model, measured, values) for model, values in errors.items()],
            }
        )
    return parts


def _equivariance(p: Pictured) -> dict[str, Any]:
    group = posing_group(p.trained.network.group)
    images = p.trained.preprocessing(p.data.test.images[:EQUIVARIANCE_IMAGES]).double()
    network = load_trained(p.run.folder.path).network.double()
    return sections.equivariance_line(p.run, group, equivariance_error(network, images, group))


def _attention(p: Pictured, drawn: _Drawn) -> dict[str, Any]:
    seen = look(p.trained, p.data.test.images[0])
    attentive = bool(attention_layers(p.trained.network))
    layers = sorted({0, len(seen.views) // 2}) if attentive else [0]
    what = "masks" if attentive else "responses"
    return {
        "model": p.model,
        "remark": "" if attentive else "This network has no attention; its responses are shown.",
        "pictures": [
            drawn(
                seen.figure(layer),
                f"attention_{_file_name(p.model)}_layer{layer + 1}",
                f"{what} of layer {layer + 1} of {p.model} for an image in all poses, and brought back to the first",
            )
            for layer in layers
        ],
    }


def _matrices(pictured: Sequence[Pictured], drawn: _Drawn) -> list[dict[str, Any]]:
    return [
        {
            "model": p.model,
            "svg": drawn(
                matrices_figure(p.trained.network),
                f"matrices_{_file_name(p.model)}",
                f"learned attention matrices of {p.model}, layer by layer",
            ),
        }
        for p in pictured
        if attention_layers(p.trained.network)
    ]


def _envelopes(
    pictured: Sequence[Pictured], sets: Mapping[Path, Sequence[Dataset]], drawn: _Drawn
) -> list[dict[str, Any]]:
    """One figure per set of data sets: networks that were trained on the same data share one."""
    figures: dict[tuple[str, ...], dict[str, dict[str, dict[str, Envelope]]]] = {}
    for p in pictured:
        if p.trained.network.group.order == 1:
            continue
        found = {
            data.name: co_occurrence(p.trained.network, p.trained.preprocessing(data.test.images[:ENVELOPE_IMAGES]))
            for data in sets[p.run.folder.path] or [p.data]
        }
        rows = figures.setdefault(tuple(found), {})
        rows[p.model if p.model not in rows else f"{p.model} ({p.run.recipe['name']})"] = found
    return [
        {
            "svg": drawn(
                envelope_figure(networks), "envelopes", f"envelopes of {', '.join(networks)} on {', '.join(data)}"
            ),
            "tables": [
                sections.envelope_table(model, name, envelopes)
                for model, by_data in networks.items()
                for name, envelopes in by_data.items()
            ],
        }
        for data, networks in figures.items()
    ]


def _data_for(name: str, p: Pictured) -> Dataset:
    data = load_data(name, size=p.trained.image_shape[1], fit=p.trained.fit)
    if data.image_shape != p.trained.image_shape:
        raise RunError(
            f"{p.model} was trained on images {p.trained.image_shape}, {data.name} has {data.image_shape}; choose "
            "--envelope-data of the same number of channels."
        )
    return data


def _file_name(model: str) -> str:
    return "".join(c if c.isalnum() or c in "=.-" else "_" for c in model)
