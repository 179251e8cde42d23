"""Train on images that do not fit into memory, and measure resident memory and the time spent waiting for images.

    python -m benchmarks.streaming --images 20000 --folder /tmp/tiles

Makes the images first (JPEG, 256 x 256, RGB, two classes of textures) unless the folder has them. Prints one row for
each number of worker processes: images per second, the share of the training time that the process waited for a batch,
and the largest resident memory of all processes together, in which shared pages count once (PSS).
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import tyro
from torch import nn

import coattend as ca
from coattend.train import Recipe, RunFolder, fit

SIDE = 256
GRAIN = {"coarse": 8, "fine": 32}  # points of noise along a side, by class


@dataclass(frozen=True)
class Options:
    """How much is measured."""

    images: int = 20_000
    folder: Path = Path("tiles")
    workers: tuple[int, ...] = (2,)
    batch: int = 32
    width: int = 6
    epochs: int = 1


def make_images(folder: Path, count: int) -> None:
    """Write smooth noise of two grain sizes as JPEG; existing files are kept."""
    from PIL import Image

    for number in range(count):
        name, points = list(GRAIN.items())[number % len(GRAIN)]
        path = folder / name / f"{number:06}.jpg"
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(number).integers(0, 256, (points, points, 3), dtype=np.uint8)
        Image.fromarray(noise).resize((SIDE, SIDE), Image.Resampling.BILINEAR).save(path, quality=90)


def network(num_classes: int, in_channels: int, width: int = 6) -> nn.Module:
    """A small network over quarter turns for large images."""
    group = ca.get_group("p4")
    return nn.Sequential(
        nn.AvgPool2d(2),
        ca.nn.LiftingConv2d(in_channels, width, 5, group=group, padding=2),
        ca.nn.GroupBatchNorm2d(width),
        nn.ReLU(),
        ca.nn.SpatialMaxPool2d(4),
        ca.nn.GroupConv2d(width, 2 * width, 3, group=group, padding=1),
        ca.nn.GroupBatchNorm2d(2 * width),
        nn.ReLU(),
        ca.nn.GroupPool(group=group),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, num_classes),
    )


class Memory:
    """The largest resident memory of this process and its children, sampled while it is entered."""

    def __enter__(self) -> Memory:
        self.largest, self._stop = 0, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *rest: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(0.5):
            self.largest = max(self.largest, sum(map(_shared_size, _process_tree())))


def _process_tree() -> list[int]:
    mine = Path("/proc/self").resolve().name
    children = Path(f"/proc/{mine}/task/{mine}/children").read_text().split()
    return [int(mine), *map(int, children)]


def _shared_size(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def main(options: Options) -> None:
    """Make the images, train once for every number of workers, and print the table."""
    started = time.perf_counter()
    make_images(options.folder, options.images)
    print(f"{options.images:,} images in {options.folder}, {time.perf_counter() - started:.0f} s", flush=True)
    print("| workers | images | images/s | waiting, % of training | memory, GB |\n|---|---|---|---|---|", flush=True)
    recipe = Recipe(
        "bench", lr=1e-3, epochs=options.epochs, batch=options.batch, augmentation=("quarter-turns",),
        keep_images="disk", bad_files="skip", equivariance_every=0, preprocessing=("per-channel",),
    )  # fmt: skip
    for workers in options.workers:
        with TemporaryDirectory() as root, Memory() as memory:
            settings = [f"workers={workers}"]
            name = f"benchmarks.streaming:network:width={options.width}"
            fit(name, options.folder, recipe, root=root, name="run", settings=settings, accelerator="cpu")
            epoch = RunFolder(Path(root, "run", "seed0")).history()[-1]
        assert epoch.images_per_second is not None
        assert epoch.waited is not None
        images = int(0.8 * options.images)
        share = 100 * epoch.waited * epoch.images_per_second / images
        row = (workers, f"{images:,}", f"{epoch.images_per_second:.0f}", f"{share:.1f}", f"{memory.largest / 1e9:.2f}")
        print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the other cores are for the workers
    main(tyro.cli(Options))
