"""Image folders: one subfolder of images per class, or such folders to train, validate and test on."""

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
    """The content of a folder: splits sorted by class, then by path; how different sizes were unified."""

    parts: dict[str, Split]
    classes: tuple[str, ...]
    changed: str


def read_folder(path: Path, size: int | None, fit: Fit) -> FolderImages:
    """Read all images of a folder; without a size, images that differ in shape or are not square get a common one.

    One error names every file that cannot be used.
    """
    tops = _split_folders(path)
    classes = sorted({child.name for top in tops.values() for child in _folders(top)})
    files = {split: [list_images(top / name) for name in classes] for split, top in tops.items()}
    every = [file for by_class in files.values() for of_class in by_class for file in of_class]
    if not every:
        raise DataError(f"{path}: expected a subfolder of images per class, at least two, got no images in any.")
    problems: dict[Path, str] = {}
    shapes = _try_each(image_size, every, problems)
    if size is not None:
        check_fit(size, fit)
    elif any(shape[0] != shape[1] for shape in shapes.values()) or len(set(shapes.values())) > 1:
        size = common_size(list(shapes.values()), fit)
    else:
        _check_memory(path, shapes)

    def read_fitting(file: Path) -> Tensor:
        image = read_image(file)
        try:
            return image if size is None else fit_images(image[None], size, fit)[0]
        except DataError as error:
            raise DataError(f"{file}: {error}") from error

    images = _try_each(read_fitting, shapes, problems)
    if problems:
        raise DataError(_problem_list(path, problems, len(every)))
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
    """Raise if images in their own size need much more memory than their files have bytes."""
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
            raise DataError(f"{path} has both {tops[split].name} and {folder.name}; merge them or rename one.")
        if list_images(folder):
            tops[split] = folder
    others = [folder.name for folder in folders if folder not in given]
    if others:
        raise DataError(
            f"{path} has {', '.join(folder.name for folder in given)} next to {', '.join(others)}; expected either "
            "folders to train, validate and test on, or folders of classes: move the others elsewhere."
        )
    return {split: tops[split] for split in ("train", "valid", "test") if split in tops}


def _folders(path: Path) -> list[Path]:
    return sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith((".", "_")))


def _try_each(read: Callable[[Path], T], files: Iterable[Path], problems: dict[Path, str]) -> dict[Path, T]:
    """Return what could be read; record the problems of the others."""
    results: dict[Path, T] = {}
    for file in files:
        try:
            results[file] = read(file)
        except DataError as error:
            problems[file] = str(error)
    return results


def _problem_list(path: Path, problems: dict[Path, str], count: int) -> str:
    messages = [problems[file] for file in sorted(problems)]
    if len(messages) == 1:
        return messages[0]
    more = [f"and {len(messages) - LISTED:,} more"] if len(messages) > LISTED else []
    return "\n  ".join([f"{path}: {len(messages):,} of {count:,} images cannot be used:", *messages[:LISTED], *more])


def describe_fit(shapes: set[tuple[int, int]], size: int | None, fit: Fit) -> str:
    """Describe how images of these shapes were changed; empty if they were not."""
    if size is None or shapes == {(size, size)}:
        return ""
    low, high = min(min(shape) for shape in shapes), max(max(shape) for shape in shapes)
    sides = f"sides of {low} to {high} pixels" if low != high else f"{low} x {low} pixels"
    return f"{'scaled' if fit == 'resize' else 'cropped'} from {sides} to {size} x {size}"
