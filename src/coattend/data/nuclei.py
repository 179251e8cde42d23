"""Nuclei inside the package: small tiles of fluorescence microscopy with masks, for examples of segmentation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from coattend.data.catalog import register_dataset
from coattend.data.dataset import Dataset, Split
from coattend.data.store import read_dataset

NAME = "nuclei-mini"
CLASSES = ("background", "nucleus")
SIZE = 88
STEP = 42  # pixels between the windows of which one is chosen
SIZES = (233, 34, 67)
FILE = Path(__file__).parent / "assets" / "nuclei_mini.npz"
PROVENANCE = "Data Science Bowl 2018 nuclei (BBBC038, CC0), an 88 x 88 window of each of its 334 images of 256 x 256"


@register_dataset(
    NAME,
    classes=CLASSES,
    image_shape=(1, SIZE, SIZE),
    sizes=SIZES,
    description="nuclei with masks inside the package",
    locate=lambda folder: FILE,
)
def load(folder: Path) -> Dataset:
    """Load the tiles; they do not depend on the data folder."""
    return read_dataset(FILE, NAME, "reinstall coattend")


def make_tiles(images: NDArray[np.uint8], labels: NDArray[np.uint16]) -> Dataset:
    """Cut the window with most nuclei out of every image; 70 % are to train, 10 % to validate, 20 % to test on.

    ``images`` (n, 256, 256, 3) are grey; ``labels`` (n, 256, 256) number the nuclei, 0 is background.
    """
    train, valid, test = (_windows(images[part], labels[part]) for part in split_indices(len(images)))
    return Dataset(NAME, train, valid, test, CLASSES, PROVENANCE, "segmentation")


def split_indices(count: int) -> list[NDArray[np.int64]]:
    """Return which images are to train (70 %), to validate (10 %) and to test on, by a fixed permutation."""
    return np.split(np.random.default_rng(0).permutation(count), [int(0.7 * count), int(0.8 * count)])


def _windows(images: NDArray[np.uint8], labels: NDArray[np.uint16]) -> Split:
    tiles, masks = [], []
    for image, label in zip(images, labels, strict=True):
        places = range(0, image.shape[0] - SIZE + 1, STEP)
        windows = [(slice(top, top + SIZE), slice(left, left + SIZE)) for top in places for left in places]
        best = max(windows, key=lambda window: int((label[window] > 0).sum()))
        tiles.append(image[best][..., 0])
        masks.append(label[best] > 0)
    return Split(torch.from_numpy(np.stack(tiles)[:, None]), torch.from_numpy(np.stack(masks).astype(np.uint8)))
