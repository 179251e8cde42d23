"""Verbs about grids of runs, networks by seeds: compare, reproduce, leaderboard, grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from coattend._terminal import console, say
from coattend.cli.placement import IN_TURN, PlacementArguments
from coattend.cli.program import Data, File, Folder, Seeds, Settings, app, leads, shown
from coattend.cli.training import DEFAULT, Training, TrainingArguments, keep_memory, parsed_seeds

if TYPE_CHECKING:
    from coattend.grid import GridError
    from coattend.train.job import Job


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
    from coattend.train.comparison import compare_jobs

    keep_memory(training.accelerator)
    comparison = compare_jobs(_jobs(models, seeds, training), placement.run)
    if comparison is not None:
        console().print(comparison_table(comparison))
        say(f"runs are in {training.folder}, this table in {training.folder / 'comparison.json'}")
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

    keep_memory("auto")
    failure = _failure(placement.run, jobs_of(rows, parsed_seeds(seeds), "paper", folder, settings=settings))
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

    keep_memory("cpu")
    board = folder / "leaderboard" if board is None else board
    page = board / "leaderboard.md" if page is None else page
    numbers = parsed_seeds(seeds)
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


@app.command
def grid(
    models: Annotated[tyro.conf.Positional[tuple[str, ...]], shown("MODEL [MODEL ...]")],
    seeds: Seeds = "0",
    training: TrainingArguments = DEFAULT,
    placement: PlacementArguments = IN_TURN,
    slurm: bool = False,
) -> int:
    """Show the states of the runs of a grid, or write it as a script for SLURM.

    The runs are those of `coattend compare` with the same arguments; after them, that command prints its table.

    Example: coattend grid p4cnn a_p4cnn --seeds 0,1,2 --recipe paper --cpus 2 --slurm

    Args:
        models: Names of networks, optionally with options after a colon.
        seeds: Seeds, separated by commas.
        slurm: Print the script of a SLURM array with one task for each run.
    """
    from coattend.grid import State, slurm_script
    from coattend.report.grid_table import grid_table

    jobs = _jobs(models, seeds, training)
    if slurm:
        say(slurm_script(jobs, placement.cpus, placement.gpus, placement.retries).rstrip())
        return 0
    states = [State(job, "queued" if job.folder.result is None else "done") for job in jobs]
    console().print(grid_table(states))
    return 0


def _jobs(models: Sequence[str], seeds: str, training: Training) -> list[Job]:
    """Return the runs of a grid with the arguments of the command line."""
    from coattend.train.job import jobs_of

    return jobs_of(
        models,
        parsed_seeds(seeds),
        training.recipe_name,
        training.folder,
        data=training.data,
        settings=training.all_settings,
        accelerator=training.accelerator,
        devices=training.devices,
        nodes=training.nodes,
    )


def _failure(run: Callable[[Sequence[Job]], None], jobs: Sequence[Job]) -> GridError | None:
    """Train a grid, and return the error that names what failed: what is finished counts all the same."""
    from coattend.grid import GridError

    try:
        run(jobs)
    except GridError as error:
        return error
    return None
