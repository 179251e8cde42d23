"""Verbs about single runs: train, evaluate, report, recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from coattend._terminal import console, say, working
from coattend.cli.program import Data, File, Model, Name, Run, app, leads, shown
from coattend.cli.training import DEFAULT, TrainingArguments, keep_memory


@app.command
def train(
    model: Model,
    seed: int = 0,
    name: Name = None,
    start: Annotated[str | None, tyro.conf.arg(name="from", metavar="RUN")] = None,
    training: TrainingArguments = DEFAULT,
) -> int:
    """Train one network; the same command continues a run that was stopped.

    Example: coattend train p4m_allcnn:downsample=pool --data tissue --size 48 --set epochs=50

    Args:
        model: A model's name, or module:function for a network of your own, optionally with options after a colon.
        seed: Seed of weights, order and augmentation.
        name: A short name for the run's folder, instead of data, network and recipe.
        start: Start from the weights of this run or file, for example to train longer than was planned.
    """
    from coattend.report.lines import outcome_lines
    from coattend.train import RunFolder, changed, get_recipe
    from coattend.train import train as train_one

    keep_memory(training.accelerator)
    settings = (*training.all_settings, *(() if start is None else (f"start={Path(start).expanduser().resolve()}",)))
    recipe = changed(get_recipe(training.recipe_name, model, training.data), settings)
    result = train_one(
        model,
        recipe,
        seed,
        training.folder,
        name=name,
        accelerator=training.accelerator,
        devices=training.devices,
        nodes=training.nodes,
    )
    if not leads():
        return 0
    path = RunFolder.of(training.folder, model, recipe, seed, name).path
    state = "was finished before; nothing done" if result.was_finished else "finished"
    epoch = "epoch chosen on validation" if result.protocol == "valid" else "last epoch"
    error, details = outcome_lines(path)
    say(f"{state}: {error or f'test error {result.test_error:.2f}%'} ({epoch}), {path}")
    for line in () if result.was_finished else details:
        say(line)
    return 0


@app.command
def evaluate(run: Run, data: Data = None, errors: File = None, csv: File = None, turns: int = 1) -> int:
    """Test a trained network: error, loss, recall and errors of every class, and equivariance error on real images.

    Example: coattend evaluate runs/mini/p4cnn/quick/seed0

    Args:
        run: A run folder, or one of its .safetensors files.
        data: Other images, with classes of the same names: a dataset's name, a folder or an .npz. All images of a
            folder without splits are tested. By default the test split of the data that the network was trained on.
        errors: Write the misclassified images into this CSV: path, truth, answer, confidence.
        csv: Write the predictions of all images into this CSV.
        turns: Also average over so many turned copies of each image; both errors are printed, classes are of one copy.
    """
    from coattend.report.lines import evaluation_lines
    from coattend.train.evaluate import evaluate_classifier

    evaluation = evaluate_classifier(run, data, turns)
    for line in evaluation_lines(evaluation):
        say(line)
    if errors is not None:
        say(f"wrote {evaluation.write_errors(errors):,} misclassified images to {errors}")
    if csv is not None:
        say(f"wrote the predictions of {evaluation.write_predictions(csv):,} images to {csv}")
    return 0


@app.command
def report(
    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], shown("RUN [RUN ...]")],
    to: File = None,
    envelope_data: Annotated[str, shown("DATA[,DATA...]")] = "",
    pictures: Annotated[Path | None, shown("FOLDER")] = None,
) -> int:
    """Write one HTML page about runs: errors with intervals, curves, equivariance, attention pictures, envelopes.

    Example: coattend report runs/mini --to report.html

    Args:
        runs: Run folders, or folders that contain some.
        to: The page; by default report.html in the folder that contains all runs.
        envelope_data: Datasets for the co-occurrence envelopes, separated by commas; by default that of the runs.
        pictures: Also write every figure into this folder, as PNG and SVG.
    """
    from coattend.report.page import write_report

    with working("reading the runs") as progress:
        datasets = [name for name in envelope_data.split(",") if name]
        page = write_report(runs, to, datasets, pictures, progress, warn=say)
    say(f"wrote {page}")
    return 0


@app.command
def recipes(model: Model = "p4cnn") -> int:
    """List the fields of the recipes and their values: quick, house, strong, and the paper's recipe for a network.

    Example: coattend recipes p4m_resnet44

    Args:
        model: The network of the paper's recipe.
    """
    from coattend.report.console import recipes_table
    from coattend.train import get_recipe
    from coattend.train.recipes import NAMES

    console().print(recipes_table([get_recipe(name, model) for name in NAMES]))
    return 0
