"""Rotated MNIST: the original files of Larochelle et al. (2007), or a substitute generated from MNIST.

Rows of the original files hold the pixels of an upright digit column by column, and everyone reads them row by row, so
that the digits of rotated MNIST are transposed: mirror images of those of MNIST. Version 2 of the generated digits is
transposed too; version 1 was not, and is available under its own name for networks that were trained on it.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Literal

import numpy as np
from numpy.typing import NDArray

from coattend.data import mnist
from coattend.data.archives import read_limited, read_members
from coattend.data.catalog import register_dataset
from coattend.data.dataset import DataError, Dataset, Split
from coattend.data.mnist import CLASSES, NUMBER, SIDE, read_table
from coattend.data.rotation import rotate
from coattend.data.sources import Progress, Web
from coattend.data.store import FetchError, NotStoredError, StoredDataset, as_tensor, read_dataset, save_dataset

NAME, NAME_OF_VERSION_1 = "rotated-mnist", "rotated-mnist-v1"
GENERATED = {1: "generated.npz", 2: "generated-v2.npz"}  # by version; the first as earlier releases named it
TRAIN, VALID, TEST = 10_000, 2_000, 50_000
SEED = 2020
ARCHIVE = "mnist_rotation_new.zip"
ARCHIVE_LARGEST = 1 << 27  # bytes
ARCHIVE_MD5 = "0f9a947ff3d30e95cd685462cbf3b847"
TRAINING_FILE = "mnist_all_rotation_normalized_float_train_valid.amat"
TEST_FILE = "mnist_all_rotation_normalized_float_test.amat"
Version = Literal[1, 2]


def read_files(folders: Sequence[Path]) -> Dataset | None:
    """Read the original files from the first folder that has them, packed or not; return None if none has."""
    for folder in folders:
        path = folder / ARCHIVE
        if path.is_file():
            members = _unpacked(path)
            return _original({name: io.BytesIO(content) for name, content in members.items()}, path)
        present = [name for name in (TRAINING_FILE, TEST_FILE) if (folder / name).is_file()]
        if len(present) == 1:
            raise DataError(f"{folder} holds {present[0]} alone; expected {TRAINING_FILE} and {TEST_FILE}, add it.")
        if present:
            with open(folder / TRAINING_FILE, "rb") as training, open(folder / TEST_FILE, "rb") as test:
                return _original({TRAINING_FILE: training, TEST_FILE: test}, folder)
    return None


def current_name(name: str, provenance: str) -> str:
    """Return today's name of a dataset that a run or a file recorded; version 1 was called as version 2 is now."""
    return NAME_OF_VERSION_1 if name == NAME and provenance.startswith(_provenance(SEED, 1)) else name


def are_mirrored(name: str | None, other: str | None) -> bool:
    """Return whether the digits of two datasets, given by today's names, are mirror images of each other."""
    digits = {"mini", "mnist", NAME, NAME_OF_VERSION_1}
    return {name, other} <= digits and (name == NAME) != (other == NAME)


def generate(
    pool: Split,
    sizes: tuple[int, int, int],
    seed: int,
    name: str = NAME,
    report: Callable[[int], None] | None = None,
    version: Version = 2,
) -> Dataset:
    """Split upright digits (n, 1, height, width) and rotate each once by a uniformly random angle.

    Version 2 then transposes them. Both versions draw the same digits, angles and order.
    """
    if sum(sizes) > len(pool):
        raise ValueError(f"expected at least {sum(sizes):,} images for splits of {sizes}, got {len(pool):,}.")
    drawn = np.random.RandomState(seed)  # its stream never changes, that of default_rng may
    chosen = drawn.permutation(len(pool))[: sum(sizes)]
    degrees = drawn.uniform(0, 360, size=len(chosen))
    rotated = rotate(pool.images.numpy()[chosen, 0], degrees, report)
    images = as_tensor((rotated if version == 1 else rotated.swapaxes(1, 2))[:, None])
    labels = as_tensor(pool.labels.numpy()[chosen])
    train, valid, test = map(Split, images.split(sizes), labels.split(sizes))
    return Dataset(name, train, valid, test, CLASSES, _provenance(seed, version))


def _provenance(seed: int, version: Version) -> str:
    return f"generated from MNIST (seed {seed})" if version == 1 else f"generated from MNIST (seed {seed}, version 2)"


def _unpacked(path: Path) -> dict[str, bytes]:
    md5 = hashlib.md5(read_limited(path, ARCHIVE_LARGEST), usedforsecurity=False).hexdigest()
    if md5 != ARCHIVE_MD5:  # compared before anything is unpacked
        raise DataError(
            f"{path} is not the published archive: md5 {md5}, expected {ARCHIVE_MD5}; it is damaged or altered, "
            "replace it."
        )
    members = read_members(path, (TRAINING_FILE, TEST_FILE), largest=NUMBER * (SIDE * SIDE + 1) * TEST)
    if len(members) < 2:
        raise DataError(f"{path}: expected {TRAINING_FILE} and {TEST_FILE} inside, got {list(members)}; replace it.")
    return members


def _original(contents: Mapping[str, IO[bytes]], path: Path) -> Dataset:
    images, labels = _rows(contents[TRAINING_FILE], TRAIN + VALID, f"{path}: {TRAINING_FILE}")
    test_images, test_labels = _rows(contents[TEST_FILE], TEST, f"{path}: {TEST_FILE}")
    return Dataset(
        name=NAME,
        train=Split(as_tensor(images[:TRAIN]), as_tensor(labels[:TRAIN])),
        valid=Split(as_tensor(images[TRAIN:]), as_tensor(labels[TRAIN:])),
        test=Split(as_tensor(test_images), as_tensor(test_labels)),
        classes=CLASSES,
        provenance=f"original ({path.name if path.is_file() else '.amat files'})",
    )


def _rows(stream: IO[bytes], count: int, file: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read 784 grey values from 0 to 1, row by row as everyone does, and a label per line."""
    try:
        rows = read_table(stream, SIDE * SIDE + 1, count, np.float32)
    except ValueError as error:
        raise DataError(
            f"{file}: expected rows of {SIDE * SIDE + 1} numbers, got {error}; replace the file."
        ) from error
    if rows.shape != (count, SIDE * SIDE + 1):
        raise DataError(
            f"{file}: expected {count:,} rows of {SIDE * SIDE + 1} numbers, got {rows.shape[0]:,} of {rows.shape[1]}; "
            "it is truncated or another file, replace it."
        )
    grey, labels = rows[:, :-1], rows[:, -1]
    if not np.isin(labels, np.arange(len(CLASSES))).all():
        raise DataError(
            f"{file}: expected labels 0..9 in the last column, got {labels.min()}..{labels.max()}; replace it."
        )
    if not (grey.min() >= 0 and grey.max() <= 1):  # NaN fails too
        raise DataError(
            f"{file}: expected grey values from 0 to 1, got {grey.min()} to {grey.max()}; replace the file."
        )
    return np.rint(grey * 255).astype(np.uint8).reshape(-1, 1, SIDE, SIDE), labels.astype(np.uint8)


STORED = StoredDataset(
    NAME,
    read_files,
    files=f"{ARCHIVE} or MNIST's four .gz files",
    sources=(Web("http://www.iro.umontreal.ca/~lisa/icml2007data", (ARCHIVE,), largest=ARCHIVE_LARGEST),),
    subfolders=("mnist_rotation_new",),
    stored_as=("original.npz", GENERATED[2]),
)
VERSION_1 = StoredDataset(
    NAME_OF_VERSION_1,
    lambda folders: None,
    files="MNIST's four .gz files",
    sources=(),
    stored_as=(GENERATED[1],),
    home=NAME,
)


def load(folder: Path) -> Dataset:
    """Load the original, or else version 2 of the generated digits."""
    try:
        return STORED.load(folder)
    except NotStoredError as error:
        if (path := VERSION_1.locate(folder)) is None:
            raise
        raise DataError(
            f"{error} {path} holds version 1 of the generated digits, which are mirror images of the others; it is "
            f"loaded as {NAME_OF_VERSION_1}."
        ) from error


def fetch(folder: Path, progress: Progress) -> Path:
    """Store the original, or a substitute generated from MNIST if the original is not available."""
    with STORED.lock(folder):
        if (path := STORED.find(folder)) is not None:
            return path
        try:
            return STORED.download(folder, progress)
        except FetchError as error:
            return _generated(STORED, folder, progress, 2, error.tried)


def fetch_version_1(folder: Path, progress: Progress) -> Path:
    """Store version 1 of the digits generated from MNIST, for networks that were trained on it."""
    with VERSION_1.lock(folder):
        return VERSION_1.find(folder) or _generated(VERSION_1, folder, progress, 1)


def _generated(
    stored: StoredDataset, folder: Path, progress: Progress, version: Version, tried: tuple[str, ...] = ()
) -> Path:
    try:
        source = mnist.STORED.fetch(folder, progress)
    except FetchError as error:
        raise FetchError(stored.name, tried + error.tried, stored.files, folder) from error
    pool = mnist.whole_pool(read_dataset(source, "mnist", "run `coattend data fetch mnist`"))
    path = stored.paths(folder)[-1]
    save_dataset(_generate_with_progress(pool, progress, version), path)
    return path


def _generate_with_progress(pool: Split, progress: Progress, version: Version) -> Dataset:
    sizes = (TRAIN, VALID, TEST)
    pixels = pool.images[0].numel()

    def report(images: int) -> None:
        progress("rotating digits", images * pixels, sum(sizes) * pixels)

    dataset = generate(pool, sizes, SEED, report=report, version=version)
    report(sum(sizes))
    return dataset


def _substitute_note(path: Path) -> str | None:
    if path.name != GENERATED[2]:
        return None
    return (
        f"The original {NAME} could not be fetched, so this is a substitute of the same sizes, generated from MNIST: "
        f"other digits, rotated by other angles. Error rates are comparable, not the same. To use the original, put "
        f"{ARCHIVE} into {path.parent.parent} and fetch again."
    )


register_dataset(
    NAME,
    classes=CLASSES,
    image_shape=(1, SIDE, SIDE),
    sizes=(TRAIN, VALID, TEST),
    description="handwritten digits in all orientations",
    fetch=fetch,
    locate=STORED.locate,
    note=_substitute_note,
)(load)
register_dataset(
    NAME_OF_VERSION_1,
    classes=CLASSES,
    image_shape=(1, SIDE, SIDE),
    sizes=(TRAIN, VALID, TEST),
    description="mirror images of the generated rotated-mnist, for networks of earlier releases",
    fetch=fetch_version_1,
    locate=VERSION_1.locate,
)(VERSION_1.load)
