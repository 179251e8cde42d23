"""Stored datasets: the data folder, an ``.npz`` format with its own checksum, and datasets that are fetched once."""

from __future__ import annotations

import contextlib
import hashlib
import lzma
import math
import os
import shutil
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from torch import Tensor

from coattend._files import atomic_writer, cache_dir, remove_unfinished
from coattend.data.dataset import FORMS, DataError, Dataset, Split
from coattend.data.sources import PART, Progress, Source, SourceError

SPLITS = ("train", "valid", "test")
ARRAYS = 100  # in one file; a dataset has nine at most
PACKED = 100  # a file may unpack to this many times its length, or to
UNPACKED = 1 << 28  # bytes if that is more
UNREADABLE = (
    OSError,
    EOFError,
    KeyError,
    MemoryError,
    OverflowError,
    RuntimeError,  # encrypted members, deep nesting, unknown compression
    ValueError,
    lzma.LZMAError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


def data_folder() -> Path:
    """Return ``COATTEND_DATA``, or else ``coattend`` in the user's cache folder."""
    chosen = os.environ.get("COATTEND_DATA")
    return Path(chosen).expanduser() if chosen else cache_dir()


def save_dataset(dataset: Dataset, path: Path, *, compressed: bool = False) -> None:
    """Write all splits into one file."""
    arrays: dict[str, Any] = {}
    for split, part in dataset.splits().items():
        arrays[f"{split}_images"] = part.images.numpy()
        arrays[f"{split}_labels"] = part.labels.numpy()
    facts: dict[str, Any] = {"classes": np.array(dataset.classes), "provenance": np.array(dataset.provenance)}
    if dataset.task != "classification":
        facts["task"] = np.array(dataset.task)
    named = {split: part.names for split, part in dataset.splits().items() if part.names is not None}
    facts |= {f"{split}_names": np.array(names) for split, names in named.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_writer(path) as file:
        write: Any = np.savez_compressed if compressed else np.savez
        write(file, **arrays, **facts, sha256=np.array(_digest(arrays)))


def read_dataset(path: Path, name: str, remedy: str) -> Dataset:
    """Read a file written by ``save_dataset``; raise if a byte has changed."""
    try:
        with open_npz(path) as file:
            arrays = {key: file[key] for split in SPLITS for key in (f"{split}_images", f"{split}_labels")}
            facts = {key: file[key] for key in ("classes", "provenance", "sha256")}
            task = str(file["task"]) if "task" in file.files else "classification"
            names = {
                split: tuple(map(str, file[f"{split}_names"])) for split in SPLITS if f"{split}_names" in file.files
            }
    except UNREADABLE as error:
        raise DataError(f"{path} cannot be read as a dataset of three splits ({error}); {remedy}.") from error
    if facts["classes"].ndim != 1 or any(not _is_part(key, array, task) for key, array in arrays.items()):
        raise DataError(f"{path} does not hold the arrays of a dataset of three splits; {remedy}.")
    if str(facts["sha256"]) != _digest(arrays):
        raise DataError(f"{path} is damaged: its content does not match the sha256 stored with it; {remedy}.")
    train, valid, test = (
        Split(as_tensor(arrays[f"{split}_images"]), as_tensor(arrays[f"{split}_labels"]), names.get(split))
        for split in SPLITS
    )
    return Dataset(name, train, valid, test, tuple(map(str, facts["classes"])), str(facts["provenance"]), task)


def _is_part(key: str, array: NDArray[Any], task: str) -> bool:
    """Whether an array can be the images or the targets of a split."""
    if key.endswith("_images"):
        return array.ndim == 4 and array.dtype == np.uint8
    if task == "classification":
        return array.ndim == 1 and array.dtype.kind in "iu"
    return task in FORMS and array.ndim == FORMS[task][1] and array.dtype in (np.uint8, np.float32)


def is_dataset(path: Path) -> bool:
    """Return whether ``save_dataset`` wrote this ``.npz``."""
    try:
        with open_npz(path) as file:
            return {"train_images", "sha256"} <= set(file.files)
    except UNREADABLE:
        return False


def read_provenance(path: Path) -> str:
    """Return the provenance of a stored dataset without reading its images."""
    try:
        with open_npz(path) as file:
            return str(file["provenance"])
    except UNREADABLE as error:
        return f"damaged: {error}"


@contextlib.contextmanager
def open_npz(path: Path) -> Iterator[NpzFile]:
    """Open an ``.npz`` without pickled objects; raise one of ``UNREADABLE`` if it is not one."""
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
    """Compare the declared sizes of the arrays with the actual ones before numpy allocates memory."""
    members = archive.infolist()
    unpacked = sum(member.file_size for member in members)
    if len(members) > ARRAYS or unpacked > max(UNPACKED, PACKED * length):
        raise ValueError(
            f"{len(members):,} arrays of {unpacked:,} bytes packed into {length:,}, which is not plausible; write it "
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
    """Return images as a uint8 tensor and labels, which have one axis, as an int64 tensor."""
    return torch.from_numpy(np.require(array if array.ndim > 1 else array.astype(np.int64), requirements=["C", "W"]))


def sha256(array: NDArray[Any]) -> str:
    """Return the digest of an array's bytes in C order."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def _digest(arrays: dict[str, NDArray[Any]]) -> str:
    whole = hashlib.sha256()
    for key in sorted(arrays):
        whole.update(f"{key} {arrays[key].dtype.str} {arrays[key].shape}".encode())
        whole.update(sha256(arrays[key]).encode())
    return whole.hexdigest()


class NotStoredError(DataError):
    """A dataset is not in the data folder."""


class FetchError(DataError):
    """No source could deliver a dataset; ``tried`` says what each of them answered."""

    def __init__(self, name: str, tried: Sequence[str], files: str, folder: Path) -> None:
        super().__init__(
            f"{name} could not be fetched: tried {'; '.join(tried)}; put {files} into {folder} by hand and run "
            f"`coattend data fetch {name}` again."
        )
        self.tried = tuple(tried)


@dataclass(frozen=True)
class StoredDataset:
    """A dataset that is read once from its published files and then stored in the data folder as an ``.npz``.

    - read_files: reads the files from the first of some folders that has them, None if none has
    - files: names of the files, for the user who gets them by hand
    - subfolders: of the data folder, in which other libraries put the files
    - home: the subfolder that stores the dataset, if it is not called after it
    - stored_as: names of the ``.npz``; the first holds the original, the others substitutes
    """

    name: str
    read_files: Callable[[Sequence[Path]], Dataset | None]
    files: str
    sources: tuple[Source, ...]
    subfolders: tuple[str, ...] = ()
    stored_as: tuple[str, ...] = ("original.npz",)
    home: str | None = None

    def load(self, folder: Path) -> Dataset:
        """Read what is stored, or the published files if they are in the data folder."""
        original, *_ = paths = self.paths(folder)
        if not original.is_file() and (dataset := self.read_files(self._places(folder))) is not None:
            with contextlib.suppress(OSError):  # in a read-only folder the files are parsed every time
                save_dataset(dataset, original)
            return dataset
        for path in paths:
            if path.is_file():
                return read_dataset(path, self.name, f"run `coattend data fetch {self.name}` to restore it")
        raise NotStoredError(
            f"{self.name} is not in {folder}; run `coattend data fetch {self.name}`, which also accepts {self.files} "
            "if you put them there, or set COATTEND_DATA to the folder that has it."
        )

    def locate(self, folder: Path) -> Path | None:
        """Return the file that stores the dataset."""
        return next((path for path in self.paths(folder) if path.is_file()), None)

    def fetch(self, folder: Path, progress: Progress) -> Path:
        """Store the dataset, from published files in the data folder or from a source."""
        with self.lock(folder):
            return self.find(folder) or self.download(folder, progress)

    def find(self, folder: Path) -> Path | None:
        """Return the file that stores the dataset if it is intact; store published files of the data folder first."""
        original, *substitutes = self.paths(folder)
        if self._is_intact(original):
            return original
        if (dataset := self.read_files(self._places(folder))) is not None:
            save_dataset(dataset, original)
            return original
        return next((path for path in substitutes if self._is_intact(path)), None)

    def download(self, folder: Path, progress: Progress) -> Path:
        """Store what the first source delivers that can; raise FetchError if none can."""
        original, incoming, tried = self.paths(folder)[0], self._home(folder) / "incoming", []
        for source in self.sources:
            _remove_all_but_parts(incoming)
            try:
                source.deliver(incoming, progress)
                dataset = self.read_files([incoming])
                if dataset is None:
                    raise SourceError("it delivered other files than expected")
            except SourceError as error:
                tried.append(f"{source.address} ({error})")
                continue
            except DataError as error:
                tried.append(f"{source.address} ({error})")
                shutil.rmtree(incoming)  # the content is wrong, so resuming the download would be too
                continue
            shutil.rmtree(incoming)
            save_dataset(dataset, original)
            return original
        with contextlib.suppress(OSError):  # it stays if it holds parts
            incoming.rmdir()
        raise FetchError(self.name, tried, self.files, folder)

    def paths(self, folder: Path) -> tuple[Path, ...]:
        """Return the files that may store the dataset, the original first."""
        return tuple(self._home(folder) / name for name in self.stored_as)

    @contextlib.contextmanager
    def lock(self, folder: Path) -> Iterator[None]:
        """Make other processes that fetch the same dataset wait; remove what a killed one was writing."""
        home = self._home(folder)
        home.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(home / ".lock"):
            remove_unfinished(home, self.stored_as)
            yield

    def _home(self, folder: Path) -> Path:
        return folder / (self.home or self.name)

    def _places(self, folder: Path) -> tuple[Path, ...]:
        return (self._home(folder), folder, *(folder / subfolder for subfolder in self.subfolders))

    def _is_intact(self, path: Path) -> bool:
        if not path.is_file():
            return False
        try:
            read_dataset(path, self.name, "it is replaced")
        except DataError:
            return False
        return True


def _remove_all_but_parts(incoming: Path) -> None:
    """Keep ``.part`` files, which are known to be incomplete; another file may only look complete."""
    if incoming.is_dir():
        for path in incoming.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.suffix != PART:
                path.unlink()
