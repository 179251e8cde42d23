"""Listings: which image files belong to which split, with which targets; the pixels are not read yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from coattend.data.images import list_images
from coattend.data.streaming import DataError

SPLIT_FOLDERS = {
    "train": "train",
    "training": "train",
    "val": "valid",
    "valid": "valid",
    "validation": "valid",
    "test": "test",
    "testing": "test",
}
WHOLE = "whole"  # the only split of images that have none
LISTED = 50  # problems in one message


@dataclass(frozen=True)
class Files:
    """Image files of one split with their targets: labels, or the files of their masks.

    ``groups`` names what each image belongs to, for example a patient.
    """

    images: tuple[Path, ...]
    labels: Tensor | None = None
    masks: tuple[Path, ...] | None = None
    groups: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Listing:
    """All files of a dataset, and what their targets are for; classes of masks are known when these are read."""

    path: Path
    task: str
    classes: tuple[str, ...]
    parts: dict[str, Files]


def split_folders(path: Path) -> dict[str, Path]:
    """Return the folders to train, validate and test on, or the folder itself if it has none of these."""
    subfolders = folders(path)
    given = [folder for folder in subfolders if folder.name.lower() in SPLIT_FOLDERS]
    if not given:
        return {WHOLE: path}
    tops: dict[str, Path] = {}
    for folder in given:
        split = SPLIT_FOLDERS[folder.name.lower()]
        if split in tops:
            raise DataError(f"{path} has both {tops[split].name} and {folder.name}; merge them or rename one.")
        if list_images(folder):
            tops[split] = folder
    others = [folder.name for folder in subfolders if folder not in given]
    if others:
        raise DataError(
            f"{path} has {', '.join(folder.name for folder in given)} next to {', '.join(others)}; expected either "
            "folders to train, validate and test on, or folders of classes: move the others elsewhere."
        )
    return {split: tops[split] for split in ("train", "valid", "test") if split in tops}


def folders(path: Path) -> list[Path]:
    """Return the subfolders, sorted, without those whose names begin with a dot or an underscore."""
    return sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith((".", "_")))


def problem_list(path: Path, problems: Sequence[str], count: int, what: str = "images cannot be used") -> DataError:
    """Return one error with all problems, or the only one."""
    if len(problems) == 1:
        return DataError(problems[0])
    more = [f"and {len(problems) - LISTED:,} more"] if len(problems) > LISTED else []
    return DataError("\n  ".join([f"{path}: {len(problems):,} of {count:,} {what}:", *problems[:LISTED], *more]))
