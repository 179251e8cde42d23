"""Rotated MNIST: the original files of Larochelle et al. (2007), or the same made anew from MNIST."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from coattend.data.archives import read_bounded, read_members
from coattend.data.dataset import DataError, Dataset, Split
from coattend.data.mnist import CLASSES, SIDE
from coattend.data.number_tables import NUMBER, read_table
from coattend.data.spline import turned
from coattend.data.storage import as_tensor

TRAIN, VALID, TEST = 10_000, 2_000, 50_000
SEED = 2020
ARCHIVE = "mnist_rotation_new.zip"
ARCHIVE_LARGEST = 1 << 27  # bytes
ARCHIVE_MD5 = "0f9a947ff3d30e95cd685462cbf3b847"
TRAINING_FILE = "mnist_all_rotation_normalized_float_train_valid.amat"
TEST_FILE = "mnist_all_rotation_normalized_float_test.amat"


def read_files(directories: Sequence[Path]) -> Dataset | None:
    """The original files from the first directory that holds them, packed or not; None if none does."""
    for directory in directories:
        path = directory / ARCHIVE
        if path.is_file():
            members = _unpacked(path)
            return _original({name: io.BytesIO(content) for name, content in members.items()}, path)
        present = [name for name in (TRAINING_FILE, TEST_FILE) if (directory / name).is_file()]
        if len(present) == 1:
            raise DataError(f"{directory} holds {present[0]} alone; expected {TRAINING_FILE} and {TEST_FILE}, add it.")
        if present:
            with open(directory / TRAINING_FILE, "rb") as training, open(directory / TEST_FILE, "rb") as test:
                return _original({TRAINING_FILE: training, TEST_FILE: test}, directory)
    return None


def generate(
    pool: Split,
    sizes: tuple[int, int, int],
    seed: int,
    name: str = "rotated-mnist",
    report: Callable[[int], None] | None = None,
) -> Dataset:
    """Disjoint splits of upright digits (n, 1, height, width), each turned once by a uniformly random angle."""
    if sum(sizes) > len(pool):
        raise ValueError(f"expected at least {sum(sizes):,} images for splits of {sizes}, got {len(pool):,}.")
    drawn = np.random.RandomState(seed)  # its stream is frozen for all time, default_rng's is not
    chosen = drawn.permutation(len(pool))[: sum(sizes)]
    degrees = drawn.uniform(0, 360, size=len(chosen))
    images = as_tensor(turned(pool.images.numpy()[chosen, 0], degrees, report)[:, None])
    labels = as_tensor(pool.labels.numpy()[chosen])
    train, valid, test = map(Split, images.split(sizes), labels.split(sizes))
    return Dataset(name, train, valid, test, CLASSES, provenance=f"generated from MNIST (seed {seed})")


def _unpacked(path: Path) -> dict[str, bytes]:
    md5 = hashlib.md5(read_bounded(path, ARCHIVE_LARGEST), usedforsecurity=False).hexdigest()
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
        name="rotated-mnist",
        train=Split(as_tensor(images[:TRAIN]), as_tensor(labels[:TRAIN])),
        valid=Split(as_tensor(images[TRAIN:]), as_tensor(labels[TRAIN:])),
        test=Split(as_tensor(test_images), as_tensor(test_labels)),
        classes=CLASSES,
        provenance=f"original ({path.name if path.is_file() else '.amat files'})",
    )


def _rows(stream: IO[bytes], count: int, file: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """784 grey values from 0 to 1 and a label per row."""
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
