"""Getting a data set: from the user's files, from the web, through a package client, or by making it anew."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from coattend._files import remove_unfinished
from coattend.data import rotated_mnist
from coattend.data.catalog import ENTRIES, MINI, MINI_FILE, Entry, get_entry
from coattend.data.dataset import DataError, Dataset
from coattend.data.mnist import whole_pool
from coattend.data.sources import PART, Progress, SourceError
from coattend.data.store import data_folder, read_dataset, save_dataset


def fetch(name: str, folder: Path | None = None, *, progress: Progress | None = None) -> Path:
    """Make a data set available to ``load_data`` and return the file that holds it; a second call finds it there.

    ``progress`` is called with what is being fetched, the bytes so far, and the bytes in all if they are known.
    """
    if name == MINI:
        return MINI_FILE
    tried: list[str] = []
    entry, folder = get_entry(name), Path(folder or data_folder())
    path = _fetched(entry, folder, progress or _silent, tried)
    if path is None:
        raise DataError(
            f"{name} could not be fetched: tried {'; '.join(tried)}; put {entry.by_hand} into {folder} by hand and "
            f"run `coattend data fetch {name}` again."
        )
    return path


def substitute(name: str, path: Path) -> str | None:
    """What a person should know of a fetched file that is not the original; None if it is."""
    if name == MINI or path.name != get_entry(name).generated(path.parent).name:
        return None
    return (
        f"The original {name} could not be fetched, so this is a substitute of the same sizes, made from MNIST: other "
        f"digits, turned by other angles. Error rates are comparable, not the same. To use the original, put "
        f"{rotated_mnist.ARCHIVE} into {path.parent.parent} and fetch again."
    )


def _fetched(entry: Entry, folder: Path, progress: Progress, tried: list[str]) -> Path | None:
    original, generated = entry.original(folder), entry.generated(folder)
    with _alone(entry, folder):
        if _is_sound(original, entry):
            return original
        dataset = entry.read_files(entry.places(folder))
        if dataset is None and _is_sound(generated, entry):
            return generated
        if dataset is None:
            dataset = _from_sources(entry, folder / entry.name / "incoming", progress, tried)
        if dataset is not None:
            save_dataset(dataset, original)
            return original
        if entry.name == "rotated-mnist" and (dataset := _made_anew(folder, progress, tried)) is not None:
            save_dataset(dataset, generated)
            return generated
    return None


def _from_sources(entry: Entry, incoming: Path, progress: Progress, tried: list[str]) -> Dataset | None:
    for source in entry.sources:
        _remove_all_but_parts(incoming)
        try:
            source.deliver(incoming, progress)
            dataset = entry.read_files([incoming])
            if dataset is None:
                raise SourceError("it delivered other files than expected")
        except SourceError as error:
            tried.append(f"{source.address} ({error})")
            continue
        except DataError as error:
            tried.append(f"{source.address} ({error})")
            shutil.rmtree(incoming)  # what arrived is wrong, so resuming it would be too
            continue
        shutil.rmtree(incoming)
        return dataset
    with contextlib.suppress(OSError):  # it stays if it holds parts
        incoming.rmdir()
    return None


def _made_anew(folder: Path, progress: Progress, tried: list[str]) -> Dataset | None:
    path = _fetched(ENTRIES["mnist"], folder, progress, tried)
    if path is None:
        return None
    pool = whole_pool(read_dataset(path, "mnist", "run `coattend data fetch mnist`"))
    sizes = (rotated_mnist.TRAIN, rotated_mnist.VALID, rotated_mnist.TEST)
    pixels = pool.images[0].numel()

    def report(images: int) -> None:
        progress("turning digits", images * pixels, sum(sizes) * pixels)

    dataset = rotated_mnist.generate(pool, sizes, rotated_mnist.SEED, report=report)
    report(sum(sizes))
    return dataset


def _is_sound(path: Path, entry: Entry) -> bool:
    if not path.is_file():
        return False
    try:
        read_dataset(path, entry.name, "it is made anew")
    except DataError:
        return False
    return True


def _remove_all_but_parts(incoming: Path) -> None:
    """A client that was killed may have left a file which looks whole; a ``.part`` is known not to be."""
    if incoming.is_dir():
        for path in incoming.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.suffix != PART:
                path.unlink()


@contextlib.contextmanager
def _alone(entry: Entry, folder: Path) -> Iterator[None]:
    """Let other processes that fetch the same wait, and clear away what a killed one was writing."""
    home = folder / entry.name
    home.mkdir(parents=True, exist_ok=True)
    with open(home / ".lock", "w") as lock:
        if sys.platform != "win32":
            import fcntl

            # Some network file systems cannot lock; two fetches at once then cost time, as all content is verified.
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
        remove_unfinished(home, [path.name for path in (entry.original(folder), entry.generated(folder))])
        yield


def _silent(what: str, done: int, total: int | None) -> None:
    """No progress is shown unless the caller shows it."""
