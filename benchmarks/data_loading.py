"""How long do loading and preprocessing take, and how much memory?

    python -m benchmarks.data_loading

Prints the table of docs/data.md, a row per task, each in a process of its own; needs `coattend data fetch` of
rotated-mnist and cifar10.
"""

from __future__ import annotations

import subprocess
import sys
import time

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
    """Load, fit on training and validation part, apply to that and to the test part."""
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
    """The most memory this process has held."""
    with open("/proc/self/status") as status:
        kilobytes = next(line.split()[1] for line in status if line.startswith("VmHWM"))
    return int(kilobytes) / 2**20


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(sys.argv[1])
    else:
        print("| task | load, s | in all, s | processor, s | peak memory, GiB |")
        print("|---|---|---|---|---|", flush=True)
        for task in TASKS:
            subprocess.run([sys.executable, __file__, task], check=True)
