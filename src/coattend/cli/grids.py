"""The verb about grids of runs: grid."""

from __future__ import annotations

from typing import Annotated

import tyro

from coattend._terminal import console, say
from coattend.cli.placement import IN_TURN, PlacementArguments
from coattend.cli.program import Seeds, app, shown
from coattend.cli.runs import DEFAULT, TrainingArguments, jobs_for


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

    jobs = jobs_for(models, seeds, training)
    if slurm:
        say(slurm_script(jobs, placement.cpus, placement.gpus, placement.retries).rstrip())
        return 0
    states = [State(job, "queued" if job.folder.result is None else "done") for job in jobs]
    console().print(grid_table(states))
    return 0
