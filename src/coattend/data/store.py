"""Where data sets are kept, and the one file format they are kept in: an ``.npz`` that carries its own checksum."""

from __future__ import annotations

import hashlib
import lzma
import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from torch import Tensor

from coattend._files import atomic_writer, cache_dir
from coattend.data.dataset import DataError, Dataset, Split

SPLITS = ("train", "valid", "test")
ARRAYS = 100  # in one file; an honest one has nine at most
PACKED = 100  # times its own length that a file may unpack to, once that is more than
UNPACKED = 1 << 28  # bytes
UNREADABLE = (
    OSError,
    EOFError,
    KeyError,
    MemoryError,
    OverflowError,
    RuntimeError,  # of encrypted members, of deep nesting and of unknown compression
    ValueError,
    lzma.LZMAError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


def data_folder() -> Path:
    """``COATTEND_DATA``, or ``coattend`` in the user's cache folder."""
    chosen = os.environ.get("COATTEND_DATA")
    if chosen:
        return Path(chosen).expanduser()
    return cache_dir()


def save_dataset(dataset: Dataset, path: Path, *, compressed: bool = False) -> None:
    """Write all splits to one file."""
    arrays: dict[str, Any] = {}
    for split, part in dataset.splits().items():
        arrays[f"{split}_images"] = part.images.numpy()
        arrays[f"{split}_labels"] = part.labels.numpy()
    facts = {"classes": np.array(dataset.classes), "provenance": np.array(dataset.provenance)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_writer(path) as file:
        write: Any = np.savez_compressed if compressed else np.savez
        write(file, **arrays, **facts, sha256=np.array(_digest(arrays)))


def read_dataset(path: Path, name: str, remedy: str) -> Dataset:
    """Read what ``save_dataset`` wrote, refusing it if a byte has changed."""
    try:
        with opened_npz(path) as file:
            arrays = {key: file[key] for split in SPLITS for key in (f"{split}_images", f"{split}_labels")}
            facts = {key: file[key] for key in ("classes", "provenance", "sha256")}
    except UNREADABLE as error:
        raise DataError(f"{path} cannot be read as a data set of three splits ({error}); {remedy}.") from error
    if facts["classes"].ndim != 1 or any(
        array.dtype != np.uint8 if array.ndim == 4 else array.ndim != 1 or array.dtype.kind not in "iu"
        for array in arrays.values()
    ):
        raise DataError(f"{path} holds arrays of other kinds than a data set of three splits has; {remedy}.")
    if str(facts["sha256"]) != _digest(arrays):
        raise DataError(f"{path} is damaged: its content does not match the sha256 stored with it; {remedy}.")
    splits = {
        split: Split(as_tensor(arrays[f"{split}_images"]), as_tensor(arrays[f"{split}_labels"])) for split in SPLITS
    }
    return Dataset(name, **splits, classes=tuple(map(str, facts["classes"])), provenance=str(facts["provenance"]))


def is_dataset(path: Path) -> bool:
    """Whether ``save_dataset`` wrote this ``.npz``."""
    try:
        with opened_npz(path) as file:
            return {"train_images", "sha256"} <= set(file.files)
    except UNREADABLE:
        return False


def stored_provenance(path: Path) -> str:
    """Where a stored data set comes from, without reading its images."""
    try:
        with opened_npz(path) as file:
            return str(file["provenance"])
    except UNREADABLE as error:
        return f"damaged: {error}"


@contextmanager
def opened_npz(path: Path) -> Iterator[NpzFile]:
    """An ``.npz`` without pickled objects; raises one of ``UNREADABLE`` if it is none."""
    with open(path, "rb") as file:  # numpy would leave the file open if it is no zip
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                _check_lengths(archive, path.stat().st_size)
        file.seek(0)
        content = np.load(file, allow_pickle=False)
        if not isinstance(content, NpzFile):
            raise ValueError("a single array, not an .npz")
        with content:
            yield content


def _check_lengths(archive: zipfile.ZipFile, length: int) -> None:
    """Compare what the arrays say of themselves with what is there, before numpy makes room for it."""
    members = archive.infolist()
    unpacked = sum(member.file_size for member in members)
    if len(members) > ARRAYS or unpacked > max(UNPACKED, PACKED * length):
        raise ValueError(
            f"{len(members):,} arrays of {unpacked:,} bytes packed into {length:,}, which no honest file has; write it "
            "with np.savez, uncompressed"
        )
    for member in members:
        with archive.open(member) as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
        if not dtype.hasobject and math.prod(shape) * max(1, dtype.itemsize) > member.file_size:
            raise ValueError(f"{member.filename} declares {shape} of {dtype} and has {member.file_size:,} bytes")


def as_tensor(array: NDArray[Any]) -> Tensor:
    """Images keep their bytes, labels become int64."""
    return torch.from_numpy(np.require(array if array.ndim > 1 else array.astype(np.int64), requirements=["C", "W"]))


def sha256(array: NDArray[Any]) -> str:
    """Digest of an array's bytes in C order."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def _digest(arrays: dict[str, NDArray[Any]]) -> str:
    whole = hashlib.sha256()
    for key in sorted(arrays):
        whole.update(f"{key} {arrays[key].dtype.str} {arrays[key].shape}".encode())
        whole.update(sha256(arrays[key]).encode())
    return whole.hexdigest()
