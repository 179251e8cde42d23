"""A folder with one sub-folder of images per class, or with such folders for training, validating and testing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from coattend.data.dataset import DataError, Split
from coattend.data.images import (
    Fit,
    check_fit,
    common_size,
    convert_channels,
    fit_images,
    image_size,
    list_images,
    read_image,
)
from coattend.data.store import PACKED, UNPACKED

SPLIT_FOLDERS = {
    "train": "train",
    "training": "train",
    "val": "valid",
    "valid": "valid",
    "validation": "valid",
    "test": "test",
    "testing": "test",
}
WHOLE = "whole"  # the only split of a folder that has none
LISTED = 50  # problems in one message

T = TypeVar("T")


@dataclass(frozen=True)
class FolderImages:
    """What a folder holds: splits in the order of class, then of path; what was done about different sizes."""

    parts: dict[str, Split]
    classes: tuple[str, ...]
    changed: str


def read_folder(path: Path, size: int | None, fit: Fit) -> FolderImages:
    """All images of a folder; without a size, images of different or oblong shapes are given a common one.

    Every file that cannot be used is named in one error.
    """
    tops = _split_folders(path)
    classes = sorted({child.name for top in tops.values() for child in _folders(top)})
    files = {split: [list_images(top / name) for name in classes] for split, top in tops.items()}
    every = [file for by_class in files.values() for of_class in by_class for file in of_class]
    if not every:
        raise DataError(f"{path}: expected a sub-folder of images per class, at least two, got no images in any.")
    problems: dict[Path, str] = {}
    shapes = _attempted(image_size, every, problems)
    if size is not None:
        check_fit(size, fit)
    elif any(shape[0] != shape[1] for shape in shapes.values()) or len(set(shapes.values())) > 1:
        size = common_size(list(shapes.values()), fit)
    else:
        _check_memory(path, shapes)

    def fitted_file(file: Path) -> Tensor:
        image = read_image(file)
        try:
            return image if size is None else fit_images(image[None], size, fit)[0]
        except DataError as error:
            raise DataError(f"{file}: {error}") from error

    images = _attempted(fitted_file, shapes, problems)
    if problems:
        raise DataError(_listed(path, problems, len(every)))
    channels = max(len(image) for image in images.values())  # grey among colours becomes colour
    parts = {}
    for split, by_class in files.items():
        labelled = [(file, label) for label, of_class in enumerate(by_class) for file in of_class]
        parts[split] = Split(
            torch.stack([convert_channels(images[file], channels) for file, _ in labelled]),
            torch.tensor([label for _, label in labelled]),
            tuple(str(file) for file, _ in labelled),
        )
    return FolderImages(parts, tuple(classes), describe_fit(set(shapes.values()), size, fit))


def _check_memory(path: Path, shapes: dict[Path, tuple[int, int]]) -> None:
    """Images that keep their size are all in memory; files of a few bytes must not decide how much that is."""
    needed = 3 * sum(height * width for height, width in shapes.values())
    if needed > max(UNPACKED, PACKED * sum(file.stat().st_size for file in shapes)):
        height, width = next(iter(shapes.values()))
        raise DataError(
            f"{path}: {len(shapes):,} images of {height:,} x {width:,} pixels take {needed:,} bytes of memory, far "
            "more than their files; choose a smaller size (--size, or size= in Python)."
        )


def _split_folders(path: Path) -> dict[str, Path]:
    folders = _folders(path)
    given = [folder for folder in folders if folder.name.lower() in SPLIT_FOLDERS]
    if not given:
        return {WHOLE: path}
    tops: dict[str, Path] = {}
    for folder in given:
        split = SPLIT_FOLDERS[folder.name.lower()]
        if split in tops:
            raise DataError(f"{path} has both {tops[split].name} and {folder.name}; join them or rename one.")
        if list_images(folder):
            tops[split] = folder
    others = [folder.name for folder in folders if folder not in given]
    if others:
        raise DataError(
            f"{path} has {', '.join(folder.name for folder in given)} beside {', '.join(others)}; expected either "
            "folders for training, validating and testing, or folders of classes: move the others away."
        )
    return {split: tops[split] for split in ("train", "valid", "test") if split in tops}


def _folders(path: Path) -> list[Path]:
    return sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith((".", "_")))


def _attempted(read: Callable[[Path], T], files: Iterable[Path], problems: dict[Path, str]) -> dict[Path, T]:
    """What could be read; the others join the problems."""
    done: dict[Path, T] = {}
    for file in files:
        try:
            done[file] = read(file)
        except DataError as error:
            problems[file] = str(error)
    return done


def _listed(path: Path, problems: dict[Path, str], count: int) -> str:
    messages = [problems[file] for file in sorted(problems)]
    if len(messages) == 1:
        return messages[0]
    more = [f"and {len(messages) - LISTED:,} more"] if len(messages) > LISTED else []
    return "\n  ".join([f"{path}: {len(messages):,} of {count:,} images cannot be used:", *messages[:LISTED], *more])


def describe_fit(shapes: set[tuple[int, int]], size: int | None, fit: Fit) -> str:
    """In words what was done to images of these shapes; empty if nothing was."""
    if size is None or shapes == {(size, size)}:
        return ""
    low, high = min(min(shape) for shape in shapes), max(max(shape) for shape in shapes)
    sides = f"sides of {low} to {high} pixels" if low != high else f"{low} x {low} pixels"
    return f"{'scaled' if fit == 'resize' else 'cropped'} from {sides} to {size} x {size}"
