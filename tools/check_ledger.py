"""Check whether this machine regenerates the ledger: repeat its runs for a few epochs and compare the curves.

    python tools/check_ledger.py 2 "recipe house" "seed 0"

For each run of ``results/runs.jsonl`` whose command contains all of the texts (every run without any) the command is
started in a folder of its own and stopped after so many epochs. What it measured after each of them is compared with
the curves of the ledger, to all their digits. Runs that agree so far have the same data, weights, order of images,
augmentation, dropout and arithmetic, and everything after follows from these. Exits with 1 if a run differs; runs
without curves cannot be compared and are named.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import tyro
from rich.console import Console

from coattend.train import RunFolder
from coattend.train.history import Epoch
from coattend.train.record import curves_of, read_records

RESULTS = Path(__file__).parents[1] / "results" / "runs.jsonl"

Curves = Mapping[str, Sequence[float | None]]


def first_epochs(command: str, epochs: int) -> tuple[Epoch, ...]:
    """Return what a training measures after each of its first epochs."""
    with tempfile.TemporaryDirectory() as root:
        words = [sys.executable, "-m", *shlex.split(command), "--folder", root]
        training = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        history: tuple[Epoch, ...] = ()
        try:
            while len(history) < epochs:
                running = training.poll() is None  # asked first: what a run wrote before its end is read below
                for file in Path(root).rglob("metrics.jsonl"):
                    history = RunFolder(file.parent).history()
                if not running and len(history) < epochs:
                    complaint = training.communicate()[1]
                    raise RuntimeError(f"{' '.join(words)} ended after {len(history)} epochs:\n{complaint}")
                time.sleep(0.2)
        finally:
            training.kill()  # also after an error: no training is left running
            training.wait()
    return history[:epochs]


def differences(recorded: Curves, measured: Curves) -> list[str]:
    """Return the first epoch in which each measure differs, with both figures."""
    differing = []
    for measure, values in measured.items():
        pairs = enumerate(zip(recorded[measure], values, strict=False), 1)
        texts = [f"{measure} of epoch {epoch}: {old} there, {new} here" for epoch, (old, new) in pairs if old != new]
        differing += texts[:1]
    return differing


def main(
    epochs: tyro.conf.Positional[int],
    texts: tyro.conf.Positional[tuple[str, ...]] = (),
) -> int:
    """Repeat runs of the ledger for a few epochs and compare; exits with 1 if one differs.

    Args:
        epochs: How many epochs of each run.
        texts: Texts that the commands of the runs contain; by default all runs.
    """
    commands = [(record.result.kind.command(record.result.seed), record) for record in read_records(RESULTS)]
    chosen = [(command, record) for command, record in commands if all(text in command for text in texts)]
    console, differing = Console(highlight=False, markup=False, soft_wrap=True), 0
    if epochs < 1 or not chosen:
        console.print(f"expected at least one epoch and texts of commands in {RESULTS}; got {epochs}, {list(texts)}.")
        return 2
    for command, record in chosen:
        if not record.curves:
            console.print(f"{command}: no curves were recorded, cannot be compared")
            continue
        count = min(epochs, record.result.epochs)
        parts = differences(record.curves, curves_of(first_epochs(command, count)))
        differing += bool(parts)
        console.print(f"{command}: {'; '.join(parts) or f'the same, epochs 1 to {count}'}")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
