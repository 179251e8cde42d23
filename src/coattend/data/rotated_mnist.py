"""Rotated MNIST: the original files of Larochelle et al. (2007), or a substitute generated from MNIST."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from coattend.data import mnist
from coattend.data.archives import read_limited, read_members
from coattend.data.catalog import register_dataset
from coattend.data.dataset import DataError, Dataset, Split
from coattend.data.mnist import CLASSES, NUMBER, SIDE, read_table
from coattend.data.sources import Progress, Web
from coattend.data.store import FetchError, StoredDataset, as_tensor, read_dataset, save_dataset

NAME = "rotated-mnist"
GENERATED = "generated.npz"
TRAIN, VALID, TEST = 10_000, 2_000, 50_000
SEED = 2020
ARCHIVE = "mnist_rotation_new.zip"
ARCHIVE_LARGEST = 1 << 27  # bytes
ARCHIVE_MD5 = "0f9a947ff3d30e95cd685462cbf3b847"
TRAINING_FILE = "mnist_all_rotation_normalized_float_train_valid.amat"
TEST_FILE = "mnist_all_rotation_normalized_float_test.amat"
MARGIN = 6  # pixels of background around the image; spline coefficients decay by a factor of 0.27 per pixel
CHUNK = 500  # images rotated at once


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


def generate(
    pool: Split,
    sizes: tuple[int, int, int],
    seed: int,
    name: str = NAME,
    report: Callable[[int], None] | None = None,
) -> Dataset:
    """Split upright digits (n, 1, height, width) and rotate each once by a uniformly random angle."""
    if sum(sizes) > len(pool):
        raise ValueError(f"expected at least {sum(sizes):,} images for splits of {sizes}, got {len(pool):,}.")
    drawn = np.random.RandomState(seed)  # its stream never changes, that of default_rng may
    chosen = drawn.permutation(len(pool))[: sum(sizes)]
    degrees = drawn.uniform(0, 360, size=len(chosen))
    images = as_tensor(rotate(pool.images.numpy()[chosen, 0], degrees, report)[:, None])
    labels = as_tensor(pool.labels.numpy()[chosen])
    train, valid, test = map(Split, images.split(sizes), labels.split(sizes))
    return Dataset(name, train, valid, test, CLASSES, provenance=f"generated from MNIST (seed {seed})")


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
    """Read 784 grey values from 0 to 1 and a label per row."""
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


def rotate(
    images: NDArray[np.uint8], degrees: NDArray[np.float64], report: Callable[[int], None] | None = None
) -> NDArray[np.uint8]:
    """Rotate images (n, height, width) on a background of 0 counter-clockwise about their centres.

    Interpolate with cubic B-splines through the pixels, then round to 0..255. This is sharper than cubic convolution,
    which is sharper than bilinear interpolation; a multiple of 90 degrees gives ``rot90`` exactly if the image is
    square. ``report`` is called with the number of images done.
    """
    if images.dtype != np.uint8 or images.ndim != 3 or degrees.shape != images.shape[:1]:
        raise ValueError(
            f"rotate expects uint8 images (n, height, width) and n angles, got {images.dtype} {images.shape} and "
            f"{degrees.shape}."
        )
    done = [images[:0]]
    for start in range(0, len(images), CHUNK):
        if report is not None:
            report(start)
        done.append(_rotate_chunk(images[start : start + CHUNK], degrees[start : start + CHUNK]))
    return np.concatenate(done)


def _rotate_chunk(images: NDArray[np.uint8], degrees: NDArray[np.float64]) -> NDArray[np.uint8]:
    count, height, width = images.shape
    coefficients = _coefficients(images)
    angle = np.deg2rad(degrees)[:, None, None]
    right = np.arange(width) - (width - 1) / 2
    down = (np.arange(height) - (height - 1) / 2)[:, None]
    # The rotated image shows at u what the original shows at u rotated back; rows run downward.
    column = np.cos(angle) * right - np.sin(angle) * down + (width - 1) / 2 + MARGIN
    row = np.sin(angle) * right + np.cos(angle) * down + (height - 1) / 2 + MARGIN

    row_taps, row_weights = _taps(row, height)
    column_taps, column_weights = _taps(column, width)
    flat = coefficients.reshape(count, -1)
    stride = coefficients.shape[2]
    value = np.zeros(row.shape)
    for i in range(4):
        for j in range(4):
            index = (row_taps[i] * stride + column_taps[j]).reshape(count, -1)
            taps = np.take_along_axis(flat, index, axis=1).reshape(row.shape)
            value += row_weights[i] * column_weights[j] * taps
    return np.clip(np.rint(value), 0, 255).astype(np.uint8)


def _coefficients(images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return B-spline coefficients c with (c[k-1] + 4 c[k] + c[k+1]) / 6 = pixel k along both axes."""
    padded = np.pad(images.astype(np.float64), ((0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN)))
    down, right = (np.linalg.inv(_sampling_matrix(length)) for length in padded.shape[1:])
    return down @ padded @ right.T


def _sampling_matrix(length: int) -> NDArray[np.float64]:
    return (4 * np.eye(length) + np.eye(length, k=1) + np.eye(length, k=-1)) / 6


def _taps(position: NDArray[np.float64], size: int) -> tuple[list[NDArray[np.int64]], list[NDArray[np.float64]]]:
    """Return indices and weights of the four coefficients around each position."""
    base = np.floor(position)
    t = position - base
    weights = [(1 - t) ** 3 / 6, 2 / 3 - t**2 + t**3 / 2, 2 / 3 - (1 - t) ** 2 + (1 - t) ** 3 / 2, t**3 / 6]
    last = size + 2 * MARGIN - 1
    # Farther out there is only background, whose coefficients have decayed to 0.
    return [np.clip(base + shift, 0, last).astype(np.int64) for shift in (-1, 0, 1, 2)], weights


STORED = StoredDataset(
    NAME,
    read_files,
    files=f"{ARCHIVE} or MNIST's four .gz files",
    sources=(Web("http://www.iro.umontreal.ca/~lisa/icml2007data", (ARCHIVE,), largest=ARCHIVE_LARGEST),),
    subfolders=("mnist_rotation_new",),
    stored_as=("original.npz", GENERATED),
)


def fetch(folder: Path, progress: Progress) -> Path:
    """Store the original, or a substitute generated from MNIST if the original is not available."""
    with STORED.lock(folder):
        if (path := STORED.find(folder)) is not None:
            return path
        try:
            return STORED.download(folder, progress)
        except FetchError as error:
            tried = error.tried
        try:
            source = mnist.STORED.fetch(folder, progress)
        except FetchError as error:
            raise FetchError(NAME, tried + error.tried, STORED.files, folder) from error
        pool = mnist.whole_pool(read_dataset(source, "mnist", "run `coattend data fetch mnist`"))
        path = folder / NAME / GENERATED
        save_dataset(_generate_with_progress(pool, progress), path)
        return path


def _generate_with_progress(pool: Split, progress: Progress) -> Dataset:
    sizes = (TRAIN, VALID, TEST)
    pixels = pool.images[0].numel()

    def report(images: int) -> None:
        progress("rotating digits", images * pixels, sum(sizes) * pixels)

    dataset = generate(pool, sizes, SEED, report=report)
    report(sum(sizes))
    return dataset


def _substitute_note(path: Path) -> str | None:
    if path.name != GENERATED:
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
)(STORED.load)
