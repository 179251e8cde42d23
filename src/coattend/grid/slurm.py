"""A grid as a script for SLURM: an array with one task for each run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from coattend.grid.process import MISTAKE
from coattend.train.job import Job


def slurm_script(jobs: Sequence[Job], cpus: int, gpus: int, retries: int, command: str = "coattend") -> str:
    """Return the script; ``cpus`` and ``gpus`` are those of each process of a run.

    SLURM starts a task again if its node fails. If the run itself was killed, the script puts its task back into the
    queue, at most ``retries`` times; a run continues from its checkpoint.
    """
    if not jobs:
        raise ValueError("a SLURM array needs at least one run; name networks and seeds.")
    first = jobs[0]
    processes = first.devices * first.nodes
    options = [
        "job-name=coattend",
        f"array=0-{len(jobs) - 1}",
        f"nodes={first.nodes}",
        f"ntasks-per-node={first.devices}",
        f"cpus-per-task={cpus}",
        *([f"gpus-per-node={gpus * first.devices}"] if gpus else []),
        "requeue",
        "open-mode=append",
        "output=slurm-%A_%a.log",
    ]
    launcher = f"srun {command}" if processes > 1 else command
    cases = [f"  {number}) {launcher} {shlex.join(job.arguments())} ;;" for number, job in enumerate(jobs)]
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            *(f"#SBATCH --{option}" for option in options),
            "",
            f"# {len(jobs)} runs; each continues where it was stopped, and ends at once if it is finished.",
            f"export OMP_NUM_THREADS={cpus}",
            'case "$SLURM_ARRAY_TASK_ID" in',
            *cases,
            f'  *) echo "there is no run $SLURM_ARRAY_TASK_ID; the last is {len(jobs) - 1}" >&2; exit {MISTAKE} ;;',
            "esac",
            "status=$?",
            "",
            f"# {MISTAKE}: a mistake or a divergence, which would end in the same way again",
            f'if [ "$status" -ne 0 ] && [ "$status" -ne {MISTAKE} ] && '
            f'[ "${{SLURM_RESTART_COUNT:-0}}" -lt {retries} ]; then',
            '  scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"',
            "fi",
            'exit "$status"',
            "",
        ]
    )
