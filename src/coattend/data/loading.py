"""One function for every data set, named or the user's own; it never touches the network."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from coattend.data.catalog import ENTRIES, MINI, MINI_FILE, MINI_SIZES, Entry, unknown
from coattend.data.dataset import DataError, Dataset, Split
from coattend.data.images import Fit, fitted_dataset
from coattend.data.store import data_folder, read_dataset, save_dataset, stored_provenance
from coattend.data.user_images import read_own_images


@dataclass(frozen=True)
class Available:
    """A named data set and where it lies; ``where`` is None if it has not been fetched."""

    name: str
    sizes: tuple[int, int, int]
    image_shape: tuple[int, int, int]
    where: Path | None
    provenance: str


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Images to test a network on."""

    name: str
    split: Split
    classes: tuple[str, ...]
    provenance: str


def load_data(
    name_or_path: str | Path, folder: Path | None = None, *, size: int | None = None, fit: Fit = "resize"
) -> Dataset:
    """A data set by name (mini, rotated-mnist, mnist, cifar10), or the user's images by path.

    A path leads to a folder with one sub-folder of images per class, or to an ``.npz`` with ``images`` and ``labels``.
    ``size`` gives all images that many pixels a side, by resizing or by cropping their centre (``fit="crop"``); without
    it the user's images keep theirs, or are given a common size where they differ or are not square.

    >>> data = load_data("mini")
    >>> len(data.train), len(data.valid), len(data.test), data.image_shape, data.provenance
    (2000, 500, 2000, (1, 28, 28), 'generated from MNIST (seed 28)')
    """
    if not isinstance(name_or_path, (str, Path)):
        raise DataError(
            f"load_data expects the name of a data set or a path, got {type(name_or_path).__name__}; there are "
            f"{', '.join(_names())}."
        )
    folder = Path(folder or data_folder())
    if name_or_path == MINI:
        dataset = read_dataset(MINI_FILE, MINI, "install coattend anew")
    elif isinstance(name_or_path, str) and name_or_path in ENTRIES:
        dataset = _stored(ENTRIES[name_or_path], folder)
    elif os.path.exists(path := Path(name_or_path).expanduser()):  # False also for names that are too long
        return read_own_images(path, size, fit).dataset()
    elif isinstance(name_or_path, Path) or len(path.parts) > 1 or path.suffix:
        raise DataError(f"{path} does not exist; expected an image folder, an .npz, or one of {', '.join(_names())}.")
    else:
        raise DataError(unknown(name_or_path, _names()))
    return dataset if size is None else fitted_dataset(dataset, size, fit)


def load_held_out(name_or_path: str | Path, trained_on: str, *, size: int, fit: Fit = "resize") -> HeldOut:
    """Images to test a network on whose training images have the provenance ``trained_on``.

    Of a named data set and of the training images themselves, the test split; of other images of the user's, those in
    ``test`` if there is such a folder, else all.
    """
    path = Path(name_or_path).expanduser()
    if name_or_path not in _names() and os.path.exists(path):
        own = read_own_images(path, size, fit)
        if own.provenance != trained_on:
            split, provenance = own.to_test()
            return HeldOut(own.name, split, own.classes, provenance)
    data = load_data(name_or_path, size=size, fit=fit)
    return HeldOut(data.name, data.test, data.classes, data.provenance)


def available(folder: Path | None = None) -> list[Available]:
    """Every named data set, fetched or not."""
    folder = Path(folder or data_folder())
    listed = [Available(MINI, MINI_SIZES, (1, 28, 28), MINI_FILE, stored_provenance(MINI_FILE))]
    for entry in ENTRIES.values():
        where = next((path for path in _files(entry, folder) if path.is_file()), None)
        provenance = "not fetched" if where is None else stored_provenance(where)
        listed.append(Available(entry.name, entry.sizes, entry.image_shape, where, provenance))
    return listed


def _stored(entry: Entry, folder: Path) -> Dataset:
    original = entry.original(folder)
    if not original.is_file() and (dataset := entry.read_files(entry.places(folder))) is not None:
        with contextlib.suppress(OSError):  # in a folder that is read-only the files are parsed each time
            save_dataset(dataset, original)
        return dataset
    for path in _files(entry, folder):
        if path.is_file():
            return read_dataset(path, entry.name, f"run `coattend data fetch {entry.name}` to make it anew")
    raise DataError(
        f"{entry.name} is not in {folder}; run `coattend data fetch {entry.name}`, which also takes {entry.by_hand} if "
        "you put them there, or set COATTEND_DATA to the folder that has it."
    )


def _files(entry: Entry, folder: Path) -> tuple[Path, Path]:
    return entry.original(folder), entry.generated(folder)


def _names() -> tuple[str, ...]:
    return (MINI, *ENTRIES)
