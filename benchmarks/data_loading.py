"""Time and memory of loading and preprocessing.

    python -m benchmarks.data_loading

Prints the table of docs/data.md, a row per task, each in its own process; needs `coattend data fetch` of
rotated-mnist and cifar10.
"""

from __future__ import annotations

import subprocess
import sys
import time

import tyro

from coattend.data import load_data, make_preprocessing

TASKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "load mini": ("mini", ()),
    "load rotated-mnist, scalar": ("rotated-mnist", ("scalar",)),
    "load rotated-mnist, per-pixel": ("rotated-mnist", ("per-pixel",)),
    "load cifar10, per-image-channel": ("cifar10", ("per-image-channel",)),
    "load cifar10, gcn": ("cifar10", ("gcn",)),
    "load cifar10, gcn, zca": ("cifar10", ("gcn", "zca")),
}


def measure(task: str) -> None:
    """Load a dataset, fit the preprocessing on training and validation images, and apply it to all."""
    name, steps = TASKS[task]
    started, worked = time.perf_counter(), time.process_time()
    dataset = load_data(name)
    loaded = time.perf_counter() - started
    if steps:
        training = dataset.train_and_valid().images
        preprocessing = make_preprocessing(steps).fit(training)
        parts = [preprocessing(training), preprocessing(dataset.test.images)]
        assert all(bool(part.isfinite().all()) for part in parts)
    seconds, cpu = time.perf_counter() - started, time.process_time() - worked
    print(f"| {task} | {loaded:.2f} | {seconds:.2f} | {cpu:.2f} | {_peak_gigabytes():.2f} |", flush=True)


def _peak_gigabytes() -> float:
    """Return the largest resident size of this process."""
    with open("/proc/self/status") as status:
        kilobytes = next(line.split()[1] for line in status if line.startswith("VmHWM"))
    return int(kilobytes) / 2**20


def main(task: tyro.conf.Positional[str | None] = None) -> None:
    """Print a row per task.

    Args:
        task: Measure this task alone, in this process.
    """
    if task is not None:
        measure(task)
        return
    print("| task | load, s | in all, s | processor, s | peak memory, GiB |")
    print("|---|---|---|---|---|", flush=True)
    for name in TASKS:
        subprocess.run([sys.executable, "-m", "benchmarks.data_loading", name], check=True)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
