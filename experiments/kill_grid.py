"""Does a grid on Ray whose workers or machines are killed end bit-identical to runs in turn with one thread?

    python -m experiments.kill_grid workers       # SIGKILL to Ray's workers, three times
    python -m experiments.kill_grid machine       # two machines, of which one is killed; needs root, for its network
    python -m experiments.kill_grid machine --apart   # the same, and that machine does not share the folder of the runs

Starts `coattend compare --on ray` as a user would, kills, and compares all tensors, measures and predictions of every
run with those of `coattend compare` with one thread, bit for bit.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import tyro

from experiments.kill_training import differing_files
from experiments.ray_nodes import NAME, Machine, two_machines

MODELS = ("p4cnn", "a_p4cnn:attention=output")
SEEDS = "0,1,2"
LIMIT = 1200.0  # seconds for a grid


class Grid:
    """A grid in a process of its own, and the lines that it prints."""

    def __init__(self, root: Path, settings: Sequence[str], *placement: str) -> None:
        self.root, self.lines = root, list[str]()
        words = [word for setting in settings for word in ("--set", setting)]
        common = ("--seeds", SEEDS, "--folder", str(root))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "coattend", "compare", *MODELS, *common, *words, *placement],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self, on_line: Callable[[str], None] = lambda line: None) -> None:
        """Read its lines to the end."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            on_line(line)
        if self.process.wait(timeout=LIMIT) != 0:
            raise RuntimeError("\n".join(self.lines[-20:]))

    def folders(self) -> dict[str, Path]:
        """Return the run folders by their path below the root."""
        return {str(path.parent.relative_to(self.root)): path.parent for path in self.root.rglob("result.json")}


def workers_of(root: Path) -> dict[str, int]:
    """Return Ray's workers that train below a root, by network and seed."""
    workers = {}
    for status in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = status.read_text().split("\0")
            parent = int((status.parent / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if "coattend.grid.leash" in words and str(root) in words:
            workers[f"{words[words.index('train') + 1]} seed {words[words.index('--seed') + 1]}"] = parent
    return workers


def kill_workers(grid: Grid, kills: int) -> list[str]:
    """Kill a worker, another each time, as soon as its run has a checkpoint; return whose."""
    killed: list[str] = []
    deadline = time.monotonic() + LIMIT
    while len(killed) < kills and grid.process.poll() is None and time.monotonic() < deadline:
        begun = {_name(path.parent) for path in grid.root.rglob("checkpoint.pt")}
        for name, worker in workers_of(grid.root).items():
            if name in begun and len(killed) < kills and killed.count(name) < 1:
                os.kill(worker, signal.SIGKILL)
                killed.append(name)
                break
        time.sleep(0.5)
    return killed


def kill_machine(grid: Grid, second: Machine) -> list[str]:
    """Kill the second machine as soon as one of its runs has a checkpoint; return which ran there."""
    there: set[str] = set()
    killed: list[str] = []

    def on_line(line: str) -> None:
        name, _, state = line.strip().partition(": ")
        if state == f"running ({NAME})":
            there.add(name)
        elif state.startswith("done"):
            there.discard(name)

    def watch() -> None:
        while not killed and grid.process.poll() is None:
            begun = {_name(path.parent) for path in grid.root.rglob("checkpoint.pt")}
            if there & begun:
                killed.extend(sorted(there))
                second.kill()
            time.sleep(0.2)

    watcher = threading.Thread(target=watch)
    watcher.start()
    grid.finish(on_line)
    watcher.join()
    return killed


def _name(folder: Path) -> str:
    """The network and the seed of a run folder, as a grid prints them."""
    model = re.sub("_attention", ":attention", folder.parents[1].name)
    return f"{model} seed {folder.name.removeprefix('seed')}"


def main(
    attack: tyro.conf.Positional[Literal["workers", "machine"]],
    apart: bool = False,
    epochs: int = 4,
    images: int = 2000,
    kills: int = 3,
) -> int:
    """Print what was killed, where the runs went, and which are bit-identical.

    Args:
        attack: What is killed.
        apart: The second machine has a disk of its own.
        epochs: Epochs of a run.
        images: Training images of a run, and at most as many test images.
        kills: Kills of workers.
    """
    settings = (f"epochs={epochs}", f"train_images={images}", f"test_images={images}")
    with tempfile.TemporaryDirectory(prefix="grid-") as name, ExitStack() as stack:
        straight, root = Grid(Path(name) / "straight", settings), Path(name) / "grid"
        straight.finish()
        root.mkdir()
        started = time.monotonic()
        if attack == "workers":
            grid = Grid(root, settings, "--on", "ray")
            killed = kill_workers(grid, kills)
            grid.finish()
        else:
            address, _, second = stack.enter_context(two_machines(root if apart else None))
            started = time.monotonic()
            grid = Grid(root, settings, "--on", "ray", "--address", address)
            killed = kill_machine(grid, second)
        seconds = time.monotonic() - started
        print("\n".join(line for line in grid.lines if " seed " in line and "against" not in line))
        expected, found = straight.folders(), grid.folders()
        wrong = {key: list(differing_files(found[key], expected[key])) for key in expected}
        for key, files in wrong.items():
            print(f"{key}: {', '.join(files) or 'bit-identical'}")
    again = sum(": running (attempt 2" in line for line in grid.lines)
    print(f"killed while training: {', '.join(killed)}; {again} started again; {seconds:.0f} s", end="; ")
    print(f"{sum(not files for files in wrong.values())} of {len(wrong)} runs bit-identical")
    return int(any(wrong.values()) or not killed)


if __name__ == "__main__":
    sys.exit(tyro.cli(main, description=__doc__))
