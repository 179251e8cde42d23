"""The command line: every verb parses its arguments, calls the library and prints."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import tyro

from coattend._terminal import console, fetch_progress, say, working
from coattend._words import missing
from coattend.version import __version__

# Verbs import what they need themselves: torch and Lightning Fabric take seconds, which `coattend --help` does without.

app = tyro.extras.SubcommandApp()


def _shown(metavar: str) -> Any:
    return tyro.conf.arg(metavar=metavar)


Settings = Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(name="set", metavar="FIELD=VALUE")]
Model = Annotated[tyro.conf.Positional[str], _shown("MODEL")]
Run = Annotated[tyro.conf.Positional[str], _shown("RUN")]
Data = Annotated[str | None, _shown("DATA")]
Name = Annotated[str | None, _shown("NAME")]
Pixels = Annotated[int | None, _shown("PIXELS")]
Folder = Annotated[Path, _shown("FOLDER")]
File = Annotated[Path | None, _shown("FILE")]
Seeds = Annotated[str, _shown("SEED[,SEED...]")]
Fit = Literal["resize", "crop"]  # that of coattend.data


@app.command
def models(pattern: Annotated[tyro.conf.Positional[str], _shown("PATTERN")] = "*") -> int:
    """List the networks: parameters, published count and error.

    Example: coattend models '*p4m*'

    Args:
        pattern: Wildcards pick some of them, for example "*p4m*".
    """
    from coattend.report.console import models_table

    console().print(models_table(pattern))
    return 0


@app.command
def check(
    model: Model, size: Pixels = None, group: Annotated[str | None, _shown("GROUP")] = None, seed: int = 0
) -> int:
    """Measure the equivariance of a network element by element, and name the layer that breaks it.

    Exits with 1 if it is not equivariant. Measured in float64 on random images; batch-norm statistics of fresh networks
    are estimated from random images first. The certificate of an exported file is recomputed from the file; if it does
    not hold, that is 1 as well.

    Example: coattend check a_p4m_allcnn --size 33

    Args:
        model: A model's name, with options after a colon if wanted, a run folder, a file written by save_model, or an
            exported .onnx file.
        size: Height and width of the images; by default those the network was trained on, for a name those of the
            paper's data set.
        group: The group to check against; by default the network's own, for plain networks p4.
        seed: Seed of weights and images.
    """
    from coattend.report.check import check_network
    from coattend.report.console import check_table

    checked = check_network(model, size, group, seed)
    console().print(check_table(checked), crop=False)
    return 0 if checked.holds else 1


@app.command
def data(
    action: tyro.conf.Positional[Literal["list", "fetch"]],
    name: Annotated[tyro.conf.Positional[str | None], _shown("[NAME]")] = None,
) -> int:
    """List the data sets and where they are, or fetch one.

    Example: coattend data fetch rotated-mnist

    Args:
        action: list, or fetch with a name.
        name: rotated-mnist, mnist or cifar10; mini is inside the package.
    """
    from coattend import data as datasets
    from coattend.report.console import data_table

    if action == "list":
        console().print(data_table(datasets.available()))
        return 0
    if name is None:
        raise ValueError("data fetch expects the name of a data set; `coattend data list` shows the names.")
    with fetch_progress() as progress:
        path = datasets.fetch(name, progress=progress)
    say(f"{name} is at {path}")
    if (note := datasets.substitute(name, path)) is not None:
        say(note)
    return 0


@app.command
def train(
    model: Model,
    data: Data = None,
    seed: int = 0,
    recipe: Name = None,
    size: Pixels = None,
    fit: Annotated[Fit | None, _shown("{resize,crop}")] = None,
    settings: Settings = (),
    folder: Folder = Path("runs"),
    name: Name = None,
    accelerator: Annotated[str, _shown("NAME")] = "auto",
    devices: int = 1,
    nodes: int = 1,
) -> int:
    """Train one network; the same command continues a run that was stopped.

    Example: coattend train p4m_allcnn:downsample=pool --data tissue --size 48 --set epochs=50

    Args:
        model: A model's name, with options after a colon if wanted.
        data: A data set's name, an image folder with one sub-folder per class, or an .npz; by default the recipe's.
        seed: Seed of weights, order and augmentation.
        recipe: quick, house or paper; by default quick on mini and house elsewhere.
        size: Pixels a side that all images are given; by default those they have, or a common one where they differ.
        fit: resize scales the shorter side to size and cuts the longer one at both ends; crop cuts the centre.
        settings: Change a field of the recipe; may be repeated. `coattend recipes` lists the fields.
        folder: Where run folders are.
        name: A short name for the run's folder, instead of data, network and recipe.
        accelerator: cpu, cuda, mps or auto.
        devices: Processes on this machine.
        nodes: Machines.
    """
    from coattend.train import RunFolder, changed, get_recipe
    from coattend.train import train as train_one

    _keep_memory(accelerator)
    chosen = changed(get_recipe(recipe or _default_recipe(data), model, data), _fitting(size, fit, settings))
    result = train_one(model, chosen, seed, folder, name=name, accelerator=accelerator, devices=devices, nodes=nodes)
    if not _leads():
        return 0
    where = RunFolder.of(folder, model, chosen, seed, name).path
    state = "was finished before; nothing done" if result.was_finished else "finished"
    chosen_on = "epoch chosen on validation" if result.protocol == "valid" else "last epoch"
    say(f"{state}: test error {result.test_error:.2f}% ({chosen_on}), {where}")
    return 0


@app.command
def recipes(model: Model = "p4cnn") -> int:
    """List the fields of the recipes and their values: quick, house, and the paper's for a network.

    Example: coattend recipes p4m_resnet44

    Args:
        model: The network whose row of Table 1 the paper's recipe is for.
    """
    from coattend.report.console import recipes_table
    from coattend.train import get_recipe

    console().print(recipes_table([get_recipe(name, model) for name in ("quick", "house", "paper")]))
    return 0


@app.command
def compare(
    models: Annotated[tyro.conf.Positional[tuple[str, ...]], _shown("MODEL [MODEL ...]")],
    seeds: Seeds = "0",
    data: Data = None,
    recipe: Name = None,
    size: Pixels = None,
    fit: Annotated[Fit | None, _shown("{resize,crop}")] = None,
    settings: Settings = (),
    folder: Folder = Path("runs"),
    accelerator: Annotated[str, _shown("NAME")] = "auto",
    devices: int = 1,
    nodes: int = 1,
) -> int:
    """Train networks side by side and test whether they differ from the first.

    Example: coattend compare p4cnn a_p4cnn:attention=output --seeds 0,1,2

    Args:
        models: Names of networks, with options after a colon if wanted.
        seeds: Seeds, separated by commas.
        data: A data set's name, an image folder with one sub-folder per class, or an .npz; by default the recipe's.
        recipe: quick, house or paper; by default quick on mini and house elsewhere.
        size: Pixels a side that all images are given; by default those they have, or a common one where they differ.
        fit: resize scales the shorter side to size and cuts the longer one at both ends; crop cuts the centre.
        settings: Change a field of the recipe; may be repeated. `coattend recipes` lists the fields.
        folder: Where run folders are.
        accelerator: cpu, cuda, mps or auto.
        devices: Processes on this machine.
        nodes: Machines.
    """
    from coattend.report.console import comparison_table
    from coattend.train import compare as compare_all

    _keep_memory(accelerator)
    comparison = compare_all(
        models,
        _seeds(seeds),
        recipe or _default_recipe(data),
        folder,
        data=data,
        settings=_fitting(size, fit, settings),
        accelerator=accelerator,
        devices=devices,
        nodes=nodes,
    )
    if comparison is not None:
        console().print(comparison_table(comparison))
        say(f"runs are in {folder}, this table in {folder / 'comparison.json'}")
    return 0


@app.command
def evaluate(run: Run, data: Data = None, errors: File = None) -> int:
    """Test a trained network: error, loss, recall and mistakes of every class, and equivariance error on real images.

    Example: coattend evaluate runs/mini/p4cnn/quick/seed0

    Args:
        run: A run folder, or one of its .safetensors files.
        data: Other images, with classes of the same names: a data set's name, a folder or an .npz. Of a folder without
            splits all images are tested. By default the test split of what the network was trained on.
        errors: Write the misclassified images into this CSV: path, truth, answer, confidence.
    """
    from coattend.train.evaluate import evaluate_classifier

    tested = evaluate_classifier(run, data)
    for line in tested.lines():
        say(line)
    if errors is not None:
        say(f"wrote {tested.write_errors(errors):,} misclassified images to {errors}")
    return 0


@app.command
def predict(
    file: Run,
    images: Annotated[tyro.conf.Positional[tuple[Path, ...]], _shown("IMAGE [IMAGE ...]")],
    csv: File = None,
    json: File = None,
) -> int:
    """Classify images: class, its probability, and the pose (rotation, reflection) that the network responds to most.

    Goes on after files that cannot be read and exits with 1 if there was one.

    Example: coattend predict runs/mini/p4cnn/quick/seed0 docs/assets/digit.png

    Args:
        file: A run folder, or one of its .safetensors files.
        images: Image files, or folders with images.
        csv: Also write a CSV, with the probability of every class.
        json: Also write them as JSON.
    """
    from coattend.models.classifier import load_trained
    from coattend.models.prediction import (
        FilePrediction,
        predict_files,
        scaling_note,
        write_predictions_csv,
        write_predictions_json,
    )

    classifier, failed, errors = load_trained(file), False, console(stderr=True)
    predictions: list[FilePrediction] = []
    for one in predict_files(classifier, images):
        if isinstance(one, FilePrediction):
            say(one.line() if predictions else f"image: class, probability, strongest pose\n{one.line()}")
            predictions.append(one)
        else:
            errors.print(f"coattend: {one}", soft_wrap=True)
            failed = True
    if (note := scaling_note(classifier, predictions)) is not None:
        errors.print(note, soft_wrap=True)
    if csv is not None:
        write_predictions_csv(csv, classifier.classes, predictions)
    if json is not None:
        write_predictions_json(json, classifier.classes, predictions)
    return 1 if failed else 0


@app.command
def reproduce(
    rows: Annotated[tyro.conf.Positional[tuple[str, ...]], _shown("[MODEL ...]")] = (),
    seeds: Seeds = "0",
    settings: Settings = (),
    folder: Folder = Path("runs"),
    ledger: Annotated[Path | None, _shown("FOLDER")] = None,
    page: File = None,
) -> int:
    """Train rows of Table 1 by the paper's recipes, resuming what is there, and show them beside the published figures.

    Example: coattend reproduce p4cnn a_p4cnn --seeds 0,1,2

    Args:
        rows: Names of `coattend models`; none shows what is there.
        seeds: Seeds, separated by commas.
        settings: Change a field of the recipes; may be repeated. `coattend recipes` lists the fields.
        folder: Where run folders are.
        ledger: The folder with the results file, runs.jsonl; by default a folder ledger in the folder of the runs.
        page: The page written from it; by default results.md in the ledger.
    """
    from coattend.report.console import reproduction_table
    from coattend.report.ledger import collect, reproductions, write_ledger
    from coattend.train import changed, get_recipe
    from coattend.train import train as train_one

    _keep_memory("auto")
    for row in rows:
        for seed in _seeds(seeds):
            train_one(row, changed(get_recipe("paper", row), settings), seed, folder)
    if _leads():
        ledger = folder / "ledger" if ledger is None else ledger
        collect(folder, ledger, rows)
        page = ledger / "results.md" if page is None else page
        write_ledger(ledger, page)
        console().print(reproduction_table(reproductions(ledger, rows, settings)))
        say(f"wrote {page}")
    return 0


@app.command
def report(
    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], _shown("RUN [RUN ...]")],
    to: File = None,
    envelope_data: Annotated[str, _shown("DATA[,DATA...]")] = "",
    pictures: Annotated[Path | None, _shown("FOLDER")] = None,
) -> int:
    """Write one HTML page about runs: errors with intervals, curves, equivariance, attention pictures, envelopes.

    Example: coattend report runs/mini --to report.html

    Args:
        runs: Run folders, or folders that have some below them.
        to: The page; by default report.html in the folder that holds all runs.
        envelope_data: Data sets for the co-occurrence envelopes, separated by commas; by default that of the runs.
        pictures: Also write every figure into this folder, as PNG and SVG.
    """
    from coattend.report.page import write_report

    with working("reading the runs") as progress:
        data_sets = [name for name in envelope_data.split(",") if name]
        page = write_report(runs, to, data_sets, pictures, progress, warn=say)
    say(f"wrote {page}")
    return 0


@app.command
def attend(
    file: Run,
    image: Annotated[tyro.conf.Positional[Path], _shown("IMAGE")],
    to: Folder = Path("attention"),
) -> int:
    """Draw what every layer of a trained network attends to in one image, its rotations and its mirrors.

    Example: coattend attend runs/mini/a_p4cnn/quick/seed0 docs/assets/digit.png --to attention

    Args:
        file: A run folder, or one of its .safetensors files.
        image: An image file; colour and size are brought to what the network was trained on.
        to: The folder for the pictures, PNG and SVG.
    """
    from coattend.report.attend import attend as attend_to
    from coattend.report.console import attention_lines

    with working(f"drawing what the network attends to in {image}"):
        pictures = attend_to(file, image, to)
    for line in attention_lines(pictures, image):
        say(line)
    return 0


@app.command
def explore(
    files: Annotated[tyro.conf.Positional[tuple[str, ...]], _shown("[RUN ...]")] = (),
    to: File = None,
    port: int = 0,
    in_browser: Annotated[bool, tyro.conf.arg(name="open")] = True,
) -> int:
    """Draw a digit and turn it in the browser while networks run beside it: answers, responses and masks follow.

    Example: coattend explore runs/mini/p4cnn/quick/seed0

    Args:
        files: Run folders or their .safetensors files, shown side by side; by default the packaged networks.
        to: Write the page into one HTML file instead of showing it.
        port: Where on this machine the page is shown; 0 takes a free port.
        in_browser: Open the page in the browser.
    """
    from coattend.report.explorer.build import explorer_page, load_networks, write_explorer
    from coattend.report.explorer.serve import page_server, serve

    if to is not None:
        write_explorer(files, to)
        say(f"wrote {to}")
        return 0
    server = page_server(explorer_page(load_networks(files)), port)
    serve(
        server,
        lambda address: say(f"the explorer is at {address} until Ctrl-C"),
        in_browser=in_browser,
    )
    return 0


@app.command
def export(
    file: Run,
    to: Annotated[Path, _shown("FILE")],
    size: Pixels = None,
    masks: bool = False,
    responses: bool = False,
    int8: bool = False,
    data: Data = None,
    overwrite: bool = False,
) -> int:
    """Write a trained network for places where this library is not installed, with a certificate of what was measured.

    Example: coattend export runs/mini/p4cnn/quick/seed0 --to model.onnx

    Args:
        file: A run folder, or a .safetensors file.
        to: The file to write: .onnx, .pt2 (torch.export), .pt (plain torch) or .safetensors (only certified).
        size: Height and width of the images; by default those that the network was trained on.
        masks: Let the .onnx return the mask of every attention as well.
        responses: Let the .onnx return what goes into every attention, or comes out of every convolution, as well.
        int8: Quantise the .onnx, calibrated on real images; reports what that costs.
        data: The data set for that; by default the one the network was trained on.
        overwrite: Replace a file that is there.
    """
    from coattend.export import export_file

    measured = export_file(
        file, to, size=size, masks=masks, responses=responses, int8=int8, data=data, overwrite=overwrite
    )
    say(f"wrote {to}, {to.stat().st_size:,} bytes")
    for line in () if measured is None else str(measured).splitlines():
        say(line)
    return 0


@app.command
def restrict(
    file: Run,
    keep: Annotated[int | None, _shown("POSES")] = None,
    budget: Annotated[float | None, _shown("SHARE")] = None,
    data: Data = None,
    to: Annotated[Path, _shown("FILE")] = Path("restricted.safetensors"),
    epochs: int = 3,
    images: int = 256,
    picture: File = None,
    seed: int = 0,
    overwrite: bool = False,
) -> int:
    """Restrict a trained network to the relative poses that contribute most, fine-tune it, and compare the stages.

    Example: coattend restrict runs/mini/p4cnn/quick/seed0 --keep 2 --to small.safetensors

    Args:
        file: A run folder, or one of its .safetensors files.
        keep: Relative poses to keep in every group convolution.
        budget: Instead, the share of the network's multiply-adds to spend, above 0 and up to 1.
        data: The dataset to measure, fine-tune and test on; by default the one the network was trained on.
        to: The file of the smaller network.
        epochs: Epochs of fine-tuning.
        images: Training images to measure contributions on.
        picture: Also draw the contributions, as PNG and SVG with this name.
        seed: Seed of the fine-tuning.
        overwrite: Replace a file that is there already.
    """
    from coattend._files import check_target
    from coattend.report import contribution_figure
    from coattend.report.console import restriction_table
    from coattend.report.style import save
    from coattend.train.restriction import restrict_trained

    if picture is not None:
        check_target(picture.with_suffix(".png"), overwrite=True)
    restriction = restrict_trained(
        file, to, keep=keep, budget=budget, data=data, epochs=epochs, images=images, seed=seed, overwrite=overwrite
    )
    console().print(restriction_table(restriction))
    if picture is not None:
        save(contribution_figure({file: restriction}), picture.with_suffix(""))
    return 0


@app.command
def bench(rounds: int = 30, compiled: bool = True, csv: File = None) -> int:
    """Measure speed and memory as ratios: against plain conv2d, the literal formula, e2cnn, and compiled networks.

    Example: coattend bench --rounds 10 --no-compiled --csv bench.csv

    Args:
        rounds: Interleaved rounds per line; the median counts.
        compiled: Also compile the networks, which takes minutes.
        csv: Write the figures to this file.
    """
    import torch

    from coattend._files import check_target
    from coattend.bench import Setting, measured_lines, measurement_table, write_csv

    if csv is not None:
        check_target(csv, overwrite=True)
    torch.manual_seed(0)
    torch.set_num_threads(2)
    measurements = []
    for measurement in measured_lines(Setting(rounds=rounds, compiled=compiled)):
        measurements.append(measurement)
        say(f"{measurement.kind}: {measurement.name} {measurement.ratio:.3f}")
    console().print(measurement_table(measurements))
    if csv is not None:
        write_csv(measurements, csv)
    return 0


def main() -> None:
    """Run a verb; a user's mistake ends in one line and exit code 2, Ctrl-C in 130."""
    if sys.argv[1:] == ["--version"]:
        say(f"coattend {__version__}")
        return
    try:
        sys.exit(app.cli(prog="coattend", description="Co-attentive equivariant networks."))
    except ValueError as error:
        _end(f"coattend: {error}", 2)
    except ModuleNotFoundError as error:
        if (remedy := missing(error)) is None:
            raise
        _end(f"coattend: {remedy}", 2)
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        _end(f"coattend: {where}{error.strerror or error}.", 2)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not re.search("can't allocate memory|out of memory", str(error)):
            raise
        reason = str(error).partition("\n")[0] or "none left"
        _end(f"coattend: not enough memory ({reason}); take a smaller network, batch or images.", 2)
    except KeyboardInterrupt:
        resumes = sys.argv[1] in ("train", "compare", "reproduce")
        _end(
            "\ncoattend: stopped" + ("; the same command continues from the last whole epoch." if resumes else "."), 130
        )


def _end(message: str, code: int) -> NoReturn:
    """Say why it ended; of several processes that train as one, the first speaks and its exit code counts."""
    if not _leads():
        sys.exit(0)  # a launcher that sees another code here kills the first process, perhaps before it has spoken
    console(stderr=True).print(message, soft_wrap=True)
    sys.exit(code)


def _keep_memory(accelerator: str) -> None:
    """Let this process keep the memory that it frees, which makes training on CPUs faster."""
    import torch

    from coattend.train.memory import keep_freed_memory

    on_gpu = accelerator == "auto" and (torch.cuda.is_available() or torch.backends.mps.is_available())
    if accelerator in ("auto", "cpu") and not on_gpu:
        keep_freed_memory()


def _default_recipe(data: str | None) -> str:
    return "quick" if data in (None, "mini") else "house"


def _fitting(size: int | None, fit: Fit | None, settings: tuple[str, ...]) -> tuple[str, ...]:
    """Size and fit as settings of the recipe, so that the run keeps them."""
    given = {"size": size, "fit": fit}
    return (*(f"{field}={value}" for field, value in given.items() if value is not None), *settings)


def _seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise ValueError(f"--seeds expects whole numbers separated by commas, got {text!r}.") from None


def _leads() -> bool:
    """Return whether this is the first of the processes that train as one, or the only one."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        return bool(distributed.get_rank() == 0)
    return os.environ.get("RANK", "0") == "0"  # torchrun has started several, and none has joined the group yet
