"""The catalog of datasets: register, load, list and fetch them by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from coattend._registry import Registry
from coattend.data.dataset import AnySplit, DataError, Dataset
from coattend.data.fitting import Fit, fit_dataset
from coattend.data.reading import BadFiles, Keep
from coattend.data.sources import Progress
from coattend.data.store import data_folder, read_provenance
from coattend.data.user_images import read_user_images

Load = Callable[[Path], Dataset]
NOT_FETCHED = "not fetched"


@dataclass(frozen=True)
class DatasetEntry:
    """A dataset with a name; ``register_dataset`` explains the fields."""

    name: str
    load: Load
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    sizes: tuple[int, int, int] | None
    description: str
    fetch: Callable[[Path, Progress], Path] | None
    locate: Callable[[Path], Path | None] | None
    note: Callable[[Path], str | None] | None

    def located(self, folder: Path) -> Path | None:
        """Return the file or folder on disk that holds the dataset, None if there is none."""
        if self.locate is not None:
            return self.locate(folder)
        return folder / self.name if self.fetch is not None and (folder / self.name).exists() else None


DATASETS: Registry[DatasetEntry] = Registry("dataset", DataError)


def register_dataset(
    name: str,
    *,
    classes: Sequence[str],
    image_shape: tuple[int, int, int],
    sizes: tuple[int, int, int] | None = None,
    description: str = "",
    fetch: Callable[[Path, Progress], Path] | None = None,
    locate: Callable[[Path], Path | None] | None = None,
    note: Callable[[Path], str | None] | None = None,
) -> Callable[[Load], Load]:
    """Return a decorator that makes a function available to :func:`load_data` under a name.

    The function receives the data folder and returns a :class:`Dataset`.

    - image_shape: channels, height and width
    - sizes: numbers of images to train, validate and test on, for listings
    - fetch: receives the data folder and a progress function, stores the dataset and returns where; None for a dataset
      that needs no fetching
    - locate: returns where the dataset is in the data folder, None if it is not; by default the folder of its name
    - note: receives what ``fetch`` returned and returns what the user has to know about it
    """

    def decorate(load: Load) -> Load:
        entry = DatasetEntry(name, load, tuple(classes), image_shape, sizes, description, fetch, locate, note)
        DATASETS.add(name, entry, load)
        return load

    return decorate


def load_data(
    name_or_path: str | Path,
    folder: Path | None = None,
    *,
    size: int | None = None,
    fit: Fit = "resize",
    keep: Keep = "auto",
    bad_files: BadFiles = "stop",
    group: str | None = None,
) -> Dataset:
    """Load a dataset by name (mini, rotated-mnist, mnist, cifar10, registered ones), or the user's images by path.

    A path leads to a folder with one subfolder of images per class, to one with ``images`` and ``masks``, to a table
    (.csv, .parquet) or to an ``.npz``; docs/data.md describes them. ``size`` gives all images that many pixels a side,
    by resizing or by cropping their centre (``fit="crop"``); without it the user's images keep their size, or get a
    common one if they differ or are not square. Nothing is downloaded.

    - keep: where the user's images are: in "memory", on "disk" until a batch needs them, or "auto", by their number
    - bad_files: "stop" checks every file and raises one error about all that cannot be used, "skip" leaves them out
    - group: the column of a table whose values must not be divided between splits, by default ``group``

    >>> data = load_data("mini")
    >>> len(data.train), len(data.valid), len(data.test), data.image_shape, data.provenance
    (2000, 500, 2000, (1, 28, 28), 'generated from MNIST (seed 28)')
    """
    if not isinstance(name_or_path, (str, Path)):
        raise DataError(
            f"load_data expects the name of a dataset or a path, got {type(name_or_path).__name__}; the names are "
            f"{', '.join(DATASETS)}."
        )
    if isinstance(name_or_path, str) and name_or_path in DATASETS:
        dataset = _load_named(DATASETS[name_or_path], Path(folder or data_folder()))
        return dataset if size is None else fit_dataset(dataset, size, fit)
    path = Path(name_or_path).expanduser()
    if os.path.exists(path):  # False also for names that are too long
        return read_user_images(path, size, fit, keep=keep, bad_files=bad_files, group=group).dataset()
    if isinstance(name_or_path, Path) or len(path.parts) > 1 or path.suffix:
        raise DataError(f"{path} does not exist; expected an image folder, an .npz, or one of {', '.join(DATASETS)}.")
    raise DATASETS.unknown(name_or_path)


def _load_named(entry: DatasetEntry, folder: Path) -> Dataset:
    dataset = entry.load(folder)
    if not isinstance(dataset, Dataset):
        raise DataError(f"{entry.name}: expected its function to return a Dataset, got {type(dataset).__name__}.")
    if (dataset.classes, dataset.image_shape) != (entry.classes, entry.image_shape):
        raise DataError(
            f"{entry.name} is registered with {len(entry.classes)} classes and images {entry.image_shape}, got "
            f"{len(dataset.classes)} classes ({', '.join(dataset.classes[:10])}) and {dataset.image_shape}; correct "
            "register_dataset."
        )
    return dataset


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Images to test a network on."""

    name: str
    split: AnySplit
    classes: tuple[str, ...]
    provenance: str
    task: str = "classification"


def load_held_out(name_or_path: str | Path, trained_on: str, *, size: int, fit: Fit = "resize") -> HeldOut:
    """Load images to test a network on; ``trained_on`` is the provenance of its training images.

    These are the test split of a named dataset and of the training images themselves; of other images of the user those
    in ``test`` if there is such a folder, else all.
    """
    path = Path(name_or_path).expanduser()
    if name_or_path not in DATASETS and os.path.exists(path):
        images = read_user_images(path, size, fit)
        if images.provenance != trained_on:
            split, provenance = images.to_test()
            return HeldOut(images.name, split, images.classes, provenance, images.task)
    data = load_data(name_or_path, size=size, fit=fit)
    return HeldOut(data.name, data.test, data.classes, data.provenance, data.task)


@dataclass(frozen=True)
class Available:
    """A named dataset and where it is; ``where`` is None if it has not been fetched or is in no file."""

    name: str
    sizes: tuple[int, int, int] | None
    image_shape: tuple[int, int, int]
    where: Path | None
    provenance: str

    @property
    def is_fetched(self) -> bool:
        """Whether ``load_data`` can load it without fetching."""
        return self.provenance != NOT_FETCHED


def available(folder: Path | None = None) -> list[Available]:
    """List every named dataset, fetched or not."""
    return [_availability(entry, Path(folder or data_folder())) for entry in DATASETS.values()]


def _availability(entry: DatasetEntry, folder: Path) -> Available:
    where = entry.located(folder)
    if where is not None and where.suffix == ".npz":
        provenance = read_provenance(where)
    else:
        provenance = NOT_FETCHED if where is None and entry.fetch is not None else entry.description
    return Available(entry.name, entry.sizes, entry.image_shape, where, provenance)


def fetch(name: str, folder: Path | None = None, *, progress: Progress | None = None) -> Path:
    """Make a dataset available to ``load_data`` and return where it is; a second call finds it there.

    ``progress`` is called with what is being fetched, the bytes so far, and the total number of bytes if it is known.
    """
    entry, folder = DATASETS[name], Path(folder or data_folder())
    path = entry.located(folder) if entry.fetch is None else entry.fetch(folder, progress or _ignore_progress)
    if path is None:
        raise DataError(f"{name} needs no fetching; load_data({name!r}) loads it.")
    return path


def substitute(name: str, path: Path) -> str | None:
    """Return what the user has to know about a fetched dataset that is not the original; None if it is."""
    entry = DATASETS[name]
    return None if entry.note is None else entry.note(path)


def _ignore_progress(what: str, done: int, total: int | None) -> None:
    """Show no progress."""
