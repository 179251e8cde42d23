"""Verbs about runs: train, compare, evaluate, report, recipes, reproduce, leaderboard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from coattend._terminal import console, say, working
from coattend.cli.placement import IN_TURN, PlacementArguments
from coattend.cli.program import Data, File, Fit, Folder, Model, Name, Pixels, Run, Seeds, Settings, app, leads, shown

if TYPE_CHECKING:
    from coattend.grid import GridError
    from coattend.train.job import Job


@dataclass(frozen=True)
class Training:
    """How and where networks are trained.

    Args:
        data: A dataset's name, an image folder with one sub-folder per class, or an .npz; by default the recipe's.
        recipe: quick, house, strong or paper; by default quick on mini and house elsewhere.
        size: Pixels a side of all images; by default their own, or a common size if they differ.
        fit: resize scales the shorter side to size and cuts the longer one at both ends; crop cuts out the centre.
        settings: Change a field of the recipe; may be repeated. `coattend recipes` lists the fields.
        folder: The folder of the run folders.
        accelerator: cpu, cuda, mps or auto.
        devices: Processes on this machine.
        nodes: Machines.
    """

    data: Data = None
    recipe: Name = None
    size: Pixels = None
    fit: Annotated[Fit | None, shown("{resize,crop}")] = None
    settings: Settings = ()
    folder: Folder = Path("runs")
    accelerator: Annotated[str, shown("NAME")] = "auto"
    devices: int = 1
    nodes: int = 1

    @property
    def recipe_name(self) -> str:
        """The recipe, by default the one for the data."""
        return self.recipe or ("quick" if self.data in (None, "mini") else "house")

    @property
    def all_settings(self) -> tuple[str, ...]:
        """The settings with size and fit among them, so that the run records these too."""
        given = {"size": self.size, "fit": self.fit}
        return (*(f"{field}={value}" for field, value in given.items() if value is not None), *self.settings)


TrainingArguments = Annotated[Training, tyro.conf.arg(name="")]
DEFAULT = Training()


@app.command
def train(model: Model, seed: int = 0, name: Name = None, training: TrainingArguments = DEFAULT) -> int:
    """Train one network; the same command continues a run that was stopped.

    Example: coattend train p4m_allcnn:downsample=pool --data tissue --size 48 --set epochs=50

    Args:
        model: A model's name, optionally with options after a colon.
        seed: Seed of weights, order and augmentation.
        name: A short name for the run's folder, instead of data, network and recipe.
    """
    from coattend.train import RunFolder, changed, get_recipe
    from coattend.train import train as train_one

    _keep_memory(training.accelerator)
    recipe = changed(get_recipe(training.recipe_name, model, training.data), training.all_settings)
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
    say(f"{state}: test error {result.test_error:.2f}% ({epoch}), {path}")
    return 0


@app.command
def compare(
    models: Annotated[tyro.conf.Positional[tuple[str, ...]], shown("MODEL [MODEL ...]")],
    seeds: Seeds = "0",
    training: TrainingArguments = DEFAULT,
    placement: PlacementArguments = IN_TURN,
) -> int:
    """Train networks with the same seeds and test whether they differ from the first.

    Example: coattend compare p4cnn a_p4cnn:attention=output --seeds 0,1,2

    Args:
        models: Names of networks, optionally with options after a colon.
        seeds: Seeds, separated by commas.
    """
    from coattend.report.console import comparison_table
    from coattend.train import compare as compare_all

    _keep_memory(training.accelerator)
    comparison = compare_all(
        models,
        _seeds(seeds),
        training.recipe_name,
        training.folder,
        data=training.data,
        settings=training.all_settings,
        accelerator=training.accelerator,
        devices=training.devices,
        nodes=training.nodes,
        run=placement.run,
    )
    if comparison is not None:
        console().print(comparison_table(comparison))
        say(f"runs are in {training.folder}, this table in {training.folder / 'comparison.json'}")
    return 0


@app.command
def evaluate(run: Run, data: Data = None, errors: File = None, turns: int = 1) -> int:
    """Test a trained network: error, loss, recall and errors of every class, and equivariance error on real images.

    Example: coattend evaluate runs/mini/p4cnn/quick/seed0

    Args:
        run: A run folder, or one of its .safetensors files.
        data: Other images, with classes of the same names: a dataset's name, a folder or an .npz. All images of a
            folder without splits are tested. By default the test split of the data that the network was trained on.
        errors: Write the misclassified images into this CSV: path, truth, answer, confidence.
        turns: Also average over so many turned copies of each image; both errors are printed, classes are of one copy.
    """
    from coattend.report.lines import evaluation_lines
    from coattend.train.evaluate import evaluate_classifier

    evaluation = evaluate_classifier(run, data, turns)
    for line in evaluation_lines(evaluation):
        say(line)
    if errors is not None:
        say(f"wrote {evaluation.write_errors(errors):,} misclassified images to {errors}")
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


@app.command
def reproduce(
    rows: Annotated[tyro.conf.Positional[tuple[str, ...]], shown("[MODEL ...]")] = (),
    seeds: Seeds = "0",
    settings: Settings = (),
    folder: Folder = Path("runs"),
    ledger: Annotated[Path | None, shown("FOLDER")] = None,
    page: File = None,
    placement: PlacementArguments = IN_TURN,
) -> int:
    """Train rows of Table 1 with the paper's recipes, resuming existing runs, and compare with the published figures.

    Example: coattend reproduce p4cnn a_p4cnn --seeds 0,1,2

    Args:
        rows: Names of `coattend models`; without any, existing runs are shown.
        seeds: Seeds, separated by commas.
        settings: Change a field of the recipes; may be repeated. `coattend recipes` lists the fields.
        folder: The folder of the run folders.
        ledger: The folder with the results file, runs.jsonl; by default the folder ledger in the folder of the runs.
        page: The page written from it; by default results.md in the ledger.
    """
    from coattend.report.console import reproduction_table
    from coattend.report.ledger import collect, reproductions, write_ledger
    from coattend.train.job import jobs_of

    _keep_memory("auto")
    failure = _failure(placement.run, jobs_of(rows, _seeds(seeds), "paper", folder, settings=settings))
    if leads():
        ledger = folder / "ledger" if ledger is None else ledger
        collect(folder, ledger, rows)
        page = ledger / "results.md" if page is None else page
        write_ledger(ledger, page)
        console().print(reproduction_table(reproductions(ledger, rows, settings)))
        say(f"wrote {page}")
    if failure is not None:
        raise failure
    return 0


@app.command
def leaderboard(
    rows: Annotated[tyro.conf.Positional[tuple[str, ...]], shown("[MODEL ...]")] = (),
    seeds: Seeds = "0",
    recipe: Annotated[str, shown("NAME")] = "strong",
    data: Data = None,
    settings: Settings = (),
    folder: Folder = Path("runs"),
    board: Annotated[Path | None, shown("FOLDER")] = None,
    page: File = None,
    placement: PlacementArguments = IN_TURN,
) -> int:
    """Train networks for the leaderboard, seed after seed, resuming existing runs, and write its page.

    Example: coattend leaderboard p4cnn:head=max e4cnn --seeds 0,1,2,3,4

    Args:
        rows: Names of `coattend models`, optionally with options after a colon; without any, the page is written again.
        seeds: Seeds, separated by commas.
        recipe: A recipe without validation images; the error is that of the last epoch.
        data: A dataset's name; by default the recipe's.
        settings: Change a field of the recipe; may be repeated. `coattend recipes` lists the fields.
        folder: The folder of the run folders.
        board: The folder with a file for each row; by default the folder leaderboard in the folder of the runs.
        page: The page written from it; by default leaderboard.md in that folder.
    """
    from coattend.report.leaderboard import write_leaderboard
    from coattend.train.entry import check_recipe, train_entry
    from coattend.train.job import jobs_of, train_in_turn

    _keep_memory("cpu")
    board = folder / "leaderboard" if board is None else board
    page = board / "leaderboard.md" if page is None else page
    numbers = _seeds(seeds)
    jobs = jobs_of(rows, numbers, recipe, folder, data=data, settings=settings, accelerator="cpu")
    jobs.sort(key=lambda job: numbers.index(job.seed))
    for job in jobs:
        check_recipe(job.recipe)

    def enter(job: Job) -> None:
        entry = train_entry(job.model, job.recipe, job.seed, job.root, board)
        say(f"{job.name}: {entry.record.result.error.last:.2f}%, turned {entry.turned_error:.2f}%")
        write_leaderboard(board, page)

    failure = None
    if not placement.is_in_turn:
        failure = _failure(placement.run, jobs)
        jobs = [job for job in jobs if job.folder.result is not None]
    train_in_turn(jobs, enter)
    board.mkdir(parents=True, exist_ok=True)
    write_leaderboard(board, page)
    say(f"wrote {page}")
    if failure is not None:
        raise failure
    return 0


def _failure(run: Callable[[Sequence[Job]], None], jobs: Sequence[Job]) -> GridError | None:
    """Train a grid, and return the error that names what failed: what is finished counts all the same."""
    from coattend.grid import GridError

    try:
        run(jobs)
    except GridError as error:
        return error
    return None


def jobs_for(models: Sequence[str], seeds: str, training: Training) -> list[Job]:
    """Return the runs of a grid with the arguments of the command line."""
    from coattend.train.job import jobs_of

    return jobs_of(
        models,
        _seeds(seeds),
        training.recipe_name,
        training.folder,
        data=training.data,
        settings=training.all_settings,
        accelerator=training.accelerator,
        devices=training.devices,
        nodes=training.nodes,
    )


def _keep_memory(accelerator: str) -> None:
    """Let this process keep the memory that it frees, which makes training on CPUs faster."""
    import torch

    from coattend.train.memory import keep_freed_memory

    on_gpu = accelerator == "auto" and (torch.cuda.is_available() or torch.backends.mps.is_available())
    if accelerator in ("auto", "cpu") and not on_gpu:
        keep_freed_memory()


def _seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise ValueError(f"--seeds expects whole numbers separated by commas, got {text!r}.") from None
