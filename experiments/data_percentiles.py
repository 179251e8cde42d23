"""Range of preprocessed CIFAR-10 images: which preprocessing has its 99th percentile at 2.3?

    python -m experiments.data_percentiles

Prints the table of docs/data.md. All 50,000 training images, no augmentation; needs `coattend data fetch cifar10`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coattend.data import load_data, make_preprocessing

PIPELINES = {
    "per-pixel": ("per-pixel",),
    "per-image-channel": ("per-image-channel",),
    "gcn": ("gcn",),
    "gcn55": ("gcn55",),
    "gcn55, zca0.1": ("gcn55", "zca0.1"),
    "gcn, zca": ("gcn", "zca"),
}
PERCENT = 99


def _standard_deviation(x: NDArray[np.float32]) -> float:
    """Return the standard deviation, computed in float64 block by block."""
    blocks = np.array_split(x, 100)
    mean = sum(float(block.sum(dtype=np.float64)) for block in blocks) / len(x)
    return float(np.sqrt(sum(float(((block - mean) ** 2).sum(dtype=np.float64)) for block in blocks) / len(x)))


def main() -> None:
    """Print a row per preprocessing."""
    images = load_data("cifar10").train_and_valid().images
    print(f"| steps | std | max abs(x) | {PERCENT}th percentile of x | of abs(x) | commutes with rotation |")
    print("|---|---|---|---|---|---|")
    for name, steps in PIPELINES.items():
        preprocessing = make_preprocessing(steps).fit(images)
        x = preprocessing(images).numpy().ravel()
        index = int(PERCENT / 100 * (len(x) - 1))
        spread = _standard_deviation(x)
        x.partition(index)
        signed = x[index]
        np.abs(x, out=x)
        x.partition(index)
        commutes = "yes" if preprocessing.commutes_with_rotation else "no"
        print(f"| {name} | {spread:.2f} | {x.max():.1f} | {signed:.3f} | {x[index]:.3f} | {commutes} |", flush=True)


if __name__ == "__main__":
    main()
