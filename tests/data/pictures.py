"""Image files that tests of several kinds of data write."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def noise(seed: int, shape: tuple[int, ...] = (12, 12, 3), high: int = 256) -> np.ndarray:
    return np.random.RandomState(seed).randint(0, high, shape).astype(np.uint8)


def write(path: Path, pixels: np.ndarray, **options: object) -> Path:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


def class_folders(top: Path, counts: dict[str, int], shape: tuple[int, ...] = (12, 12, 3)) -> Path:
    for number, (name, count) in enumerate(counts.items()):
        for i in range(count):
            write(top / name / f"{i:03}.png", noise(1000 * number + i, shape))
    return top


def mask_folders(top: Path, count: int, classes: int = 2, size: int = 12) -> Path:
    """Images whose brightness depends on the class of each pixel, with their masks."""
    for i in range(count):
        mask = noise(i, (size // 4, size // 4), classes).repeat(4, 0).repeat(4, 1)
        image = (mask[..., None] * (200 // classes) + noise(500 + i, (size, size, 3), 40)).astype(np.uint8)
        write(top / "images" / f"{i:03}.png", image)
        write(top / "masks" / f"{i:03}.png", mask)
    return top
