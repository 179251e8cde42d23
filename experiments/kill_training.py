"""Does a training that is killed repeatedly end bit-identical to one that is not?

    python -m experiments.kill_training [--kills 100] [--seed 0]

Starts `coattend train` as a user would, on a tiny network, kills it with SIGKILL at a random moment, starts the same
command again, and so on until it ends by itself, until the number of kills is reached. Of every killed run all
tensors of the weights, all metrics but the wall-clock ones, the predictions and the result must be those of a run that
was never killed, bit for bit. Moments are drawn by phase: while Python starts, at every write of a file (just before
and just after), and anywhere between the first epoch and the end.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tyro
from safetensors.numpy import load_file

MODEL = "a_p4cnn:width=1,attention=output,dropout=0.2"
SETTINGS = (
    "epochs=16",
    "train_images=128",
    "valid_images=40",
    "test_images=40",
    "batch=16",
    "augmentation=rotate,flips",
)
WALL_CLOCK = ("seconds", "seconds_per_epoch", "images_per_second", "time", "was_finished")
LIMIT = 300.0  # seconds for one start of the command
KILLS_PER_RUN = 10  # then the run may end


@dataclass
class Run:
    """One training, killed any number of times."""

    root: Path
    kills: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)

    def start(self) -> subprocess.Popen[str]:
        """Start the command with its folder in that of this run."""
        settings = [part for setting in SETTINGS for part in ("--set", setting)]
        arguments = ["train", MODEL, "--seed", "5", "--folder", str(self.root), *settings]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [sys.executable, "-m", "coattend", *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self) -> None:
        """Run it to its end."""
        process = self.start()
        output, _ = process.communicate(timeout=LIMIT)
        if process.returncode != 0 or "Traceback" in output:
            self.complaints.append(f"exit {process.returncode}: {output.strip()[-300:]}")

    def kill_once(self, chance: random.Random) -> None:
        """Start it and kill it at a random moment of a phase."""
        phase = chance.choices(("start-up", "training", "writing"), (1, 5, 3))[0]
        process = self.start()
        epochs = self.epochs()
        if phase == "start-up":
            time.sleep(chance.uniform(0, 3))
        else:
            wanted = epochs + chance.randint(0, 2)
            while process.poll() is None and self.epochs() <= wanted:
                time.sleep(0.005)
            if phase == "training":
                time.sleep(chance.uniform(0, 0.3))
            else:
                self._await_write(process)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            self.kills[phase] += 1
        output, _ = process.communicate(timeout=LIMIT)
        if "Traceback" in output:
            self.complaints.append(output.strip()[-300:])

    def _await_write(self, process: subprocess.Popen[str]) -> None:
        """Wait until a file is being written: its name starts with a dot."""
        folder = self.folder()
        deadline = time.monotonic() + 5
        while process.poll() is None and time.monotonic() < deadline:
            if any(name.startswith(".") for name in os.listdir(folder)):
                return

    def folder(self) -> Path:
        """Return the folder of run.json."""
        return next((path.parent for path in self.root.rglob("run.json")), self.root)

    def epochs(self) -> int:
        """Return the number of recorded epochs."""
        metrics = self.folder() / "metrics.jsonl"
        return metrics.read_bytes().count(b"\n") if metrics.is_file() else 0

    def is_finished(self) -> bool:
        """Return whether there is a result."""
        return (self.folder() / "result.json").is_file()


def differences(killed: Run, straight: Run) -> Iterator[str]:
    """Return what differs in two finished runs, bit for bit, and what else the killed one left on disk."""
    found, expected = killed.folder(), straight.folder()
    yield from differing_files(found, expected)
    left = {path.name for path in found.iterdir()} - {path.name for path in expected.iterdir()}
    if left:
        yield f"left over: {', '.join(sorted(left))}"


def differing_files(found: Path, expected: Path) -> Iterator[str]:
    """Return which files of two finished runs differ in tensors, measures or predictions, bit for bit."""
    for name in ("last.safetensors", "best.safetensors"):
        ours, theirs = load_file(found / name), load_file(expected / name)
        if set(ours) != set(theirs) or any(ours[key].tobytes() != theirs[key].tobytes() for key in theirs):
            yield name
    with np.load(found / "predictions.npz") as ours, np.load(expected / "predictions.npz") as theirs:
        if any(ours[key].tobytes() != theirs[key].tobytes() for key in theirs.files):
            yield "predictions.npz"
    for name in ("metrics.jsonl", "result.json"):
        if _without_clocks(found / name) != _without_clocks(expected / name):
            yield name


def _without_clocks(path: Path) -> list[dict[str, object]]:
    text = path.read_text()
    lines = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else [json.loads(text)]
    return [{key: value for key, value in line.items() if key not in WALL_CLOCK} for line in lines]


def killed_run(root: Path, kills: int, seed: int) -> Run:
    """Return a run that is killed ``kills`` times, unless it ends before, and then ends by itself."""
    run, chance = Run(root), random.Random(seed)
    root.mkdir()
    while run.kills.total() < kills and not run.is_finished() and not run.complaints:
        run.kill_once(chance)
    run.finish()
    return run


def main(kills: int = 100, seed: int = 0, workers: int = 2) -> int:
    """Print a table with a row per run.

    Args:
        kills: Number of kills.
        seed: Seed of their moments.
        workers: Runs at a time.
    """
    started = time.monotonic()
    done: Counter[str] = Counter()
    failures = number = 0
    with tempfile.TemporaryDirectory(prefix="kills-") as name, ThreadPoolExecutor(workers) as pool:
        straight = killed_run(Path(name) / "straight", 0, 0)
        print("| run | kills | while | ends as the run that was not killed |\n|---|---|---|---|")
        while done.total() < kills:
            left = kills - done.total()
            shares = [min(KILLS_PER_RUN, -(-left // workers))] * workers
            tasks = [
                pool.submit(killed_run, Path(name) / f"killed{number + n}", share, seed * 1000 + number + n)
                for n, share in enumerate(shares)
            ]
            for task in tasks:
                run = task.result()
                wrong = [*run.complaints, *(() if run.complaints else differences(run, straight))]
                phases = ", ".join(f"{count} {phase}" for phase, count in sorted(run.kills.items()))
                print(f"| {number} | {run.kills.total()} | {phases} | {'; '.join(wrong) or 'yes'} |", flush=True)
                done += run.kills
                failures += bool(wrong)
                number += 1
    print(
        f"\n{done.total()} kills ({dict(done)}) in {number} runs, {number - failures} of them bit-identical; ", end=""
    )
    print(f"seed {seed}, {time.monotonic() - started:.0f} s")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(tyro.cli(main, description=__doc__))
