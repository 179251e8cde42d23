"""Speed of a grid on one machine: in turn with all threads, side by side, and on Ray; and of two processes per run.

    python -m benchmarks.grid_speed --folder /tmp/speed              # measures; needs an idle machine
    python -m benchmarks.grid_speed --folder /tmp/speed --identity   # then compares all runs with runs of one thread

Every grid is a command as a user types it, start of Python and of Ray included.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import tyro
from experiments.kill_training import differing_files

from coattend.train import RunFolder

GRID = ("p4cnn", "a_p4cnn:attention=output", "--seeds", "0,1,2")  # 6 runs of mini
SIDE_BY_SIDE = {"--workers 2": ("--workers", "2"), "--on ray": ("--on", "ray")}
IN_TURN = "in turn"


def run(words: list[str], threads: int | None) -> float:
    """Run a command of coattend; return its seconds."""
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "coattend", *words], env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def grid(root: Path, epochs: int, *placement: str, threads: int | None = None) -> float:
    """Train the grid; return its seconds."""
    return run(["compare", *GRID, "--folder", str(root), "--set", f"epochs={epochs}", *placement], threads)


def images_per_second(root: Path, epochs: int, devices: int, threads: int) -> float:
    """Train one run by so many processes; return the median over its epochs, without the first."""
    words = ["train", "p4cnn", "--folder", str(root), "--set", f"epochs={epochs}", "--devices", str(devices)]
    run([*words, "--accelerator", "cpu"], threads)
    (metrics,) = root.rglob("metrics.jsonl")
    return statistics.median(e.images_per_second or 0.0 for e in RunFolder(metrics.parent).history()[1:])


def measure(folder: Path, epochs: int) -> None:
    """Print seconds and ratios."""
    base = grid(folder / "in turn", epochs)
    print(f"| grid of 6 runs of mini, {epochs} epochs | seconds | throughput |\n|---|---|---|")
    print(f"| {IN_TURN}, {os.cpu_count()} threads | {base:.0f} | 1 |", flush=True)
    for name, placement in SIDE_BY_SIDE.items():
        seconds = grid(folder / name, epochs, *placement)
        print(f"| `{name}` | {seconds:.0f} | {base / seconds:.2f} |", flush=True)
    one = images_per_second(folder / "one process", epochs, 1, 2)
    two = images_per_second(folder / "two processes", epochs, 2, 1)
    single = images_per_second(folder / "one thread", epochs, 1, 1)
    print("\n| one run of p4cnn on mini | images per second | relative |\n|---|---|---|")
    print(f"| one process, two threads | {one:.0f} | 1 |")
    print(f"| two processes (`--devices 2`), one thread each | {two:.0f} | {two / one:.2f} |")
    print(f"| one process, one thread | {single:.0f} | {single / one:.2f} |")


def compare(folder: Path, epochs: int) -> int:
    """Train the grid in turn with one thread, and print how many of the other runs are equal to the last bit."""
    reference = folder / "one thread each"
    grid(reference, epochs, threads=1)
    straight = [path.parent for path in sorted(reference.rglob("result.json"))]
    differing = 0
    for name in SIDE_BY_SIDE:
        pairs = [(folder / name / path.relative_to(reference), path) for path in straight]
        wrong = {str(ours): files for ours, theirs in pairs if (files := list(differing_files(ours, theirs)))}
        print(f"{name}: {len(pairs) - len(wrong)} of {len(pairs)} runs bit-identical to runs in turn with one thread")
        differing += len(wrong)
    return int(differing > 0)


def main(folder: Path, epochs: int = 5, identity: bool = False) -> int:
    """Measure, or compare what was measured.

    Args:
        folder: The folder of the runs, a new one to measure.
        epochs: Epochs of a run.
        identity: Compare.
    """
    if identity:
        return compare(folder, epochs)
    if folder.exists():
        raise SystemExit(f"{folder} exists; finished runs would take no time. Choose another --folder.")
    folder.mkdir(parents=True)
    measure(folder, epochs)
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main, description=__doc__))
