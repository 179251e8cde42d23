"""Masks for segmentation: folders ``images`` and ``masks`` with files of equal names, and their class numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coattend.data.fitting import Fit, fit_images
from coattend.data.images import list_images, opened_image
from coattend.data.listing import Files, Listing, problem_list, split_folders
from coattend.data.streaming import DataError

IMAGES, MASKS, NAMES = "images", "masks", "classes.txt"
SUFFIX = "_mask"  # that the name of a mask may have in addition
FOREGROUND = 255  # in masks of two classes
MOST_CLASSES = 255
SINGLE = frozenset({"1", "L", "P", "I;16", "I"})  # Pillow's modes of one channel


def has_masks(path: Path) -> bool:
    """Whether a folder, or one of its folders to train, validate and test on, has images and masks."""
    tops = [path, *(child for child in path.iterdir() if child.is_dir())]
    return any((top / IMAGES).is_dir() and (top / MASKS).is_dir() for top in tops)


def list_mask_folders(path: Path) -> Listing:
    """Pair images and masks by their names without suffix; ``classes.txt`` may name the classes, one in each line."""
    tops = {"whole": path} if (path / IMAGES).is_dir() else split_folders(path)
    parts, problems, count = {}, [], 0
    for split, top in tops.items():
        images = {_key(file, top / IMAGES): file for file in list_images(top / IMAGES)}
        masks = {_key(file, top / MASKS).removesuffix(SUFFIX): file for file in list_images(top / MASKS)}
        problems += [f"{images[key]} has no mask in {top / MASKS}" for key in images if key not in masks]
        problems += [f"{masks[key]} has no image in {top / IMAGES}" for key in masks if key not in images]
        count += len(images)
        paired = [(images[key], masks[key]) for key in sorted(images) if key in masks]
        parts[split] = Files(tuple(image for image, _ in paired), masks=tuple(mask for _, mask in paired))
    if problems:
        raise problem_list(path, problems, count, "images and masks have no partner; add or remove files")
    if not count:
        raise DataError(f"{path}: expected images in {IMAGES} and their masks in {MASKS}, got none.")
    return Listing(path, "segmentation", class_names(path), parts)


def class_names(path: Path) -> tuple[str, ...]:
    """Return the lines of ``classes.txt``; none without the file."""
    file = path / NAMES
    if not file.is_file():
        return ()
    names = tuple(line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
    if len(names) < 2 or len(set(names)) < len(names):
        raise DataError(f"{file}: expected the names of at least two classes, one in each line, all different.")
    return names


def read_mask(path: Path) -> NDArray[Any]:
    """Read the class numbers (height, width) of a mask as they are stored; the colours of a palette do not matter."""
    with opened_image(path) as image:
        if image.mode not in SINGLE:
            raise DataError(
                f"{path}: expected a mask of one channel with the number of its class in each pixel, got Pillow's mode "
                f"{image.mode!r}; convert colours to class numbers first."
            )
        values: NDArray[Any] = np.asarray(image)
    return values.astype(np.uint8) if values.dtype == bool else values


def verified_classes(path: Path, names: Sequence[str], values: dict[int, str]) -> tuple[tuple[str, ...], bool]:
    """Return the names of the classes, and whether 255 stands for class 1.

    ``values`` are all class numbers with the file in which each was seen first. Without names, masks of 0 and 255 have
    two classes; otherwise every number from 0 to the largest has to occur.
    """
    present = sorted(values)
    if set(present) <= {0, FOREGROUND} and len(names) in (0, 2):
        return (tuple(names) or ("background", "foreground")), FOREGROUND in values
    count = len(names) or len(present)
    wrong = [value for value in present if not 0 <= value < count]
    if wrong or count > MOST_CLASSES:
        where = f"{values[wrong[0]]}" if wrong else str(path)
        shown = ", ".join(map(str, wrong[:8])) + (", ..." if len(wrong) > 8 else "")
        classes = f"the {count} classes of {NAMES}" if names else f"the {count} numbers that occur"
        raise DataError(
            f"{where}: expected class numbers from 0 to {count - 1}, for {classes}, got {shown or present[-1]}; "
            f"renumber the masks without gaps, name all classes in {path / NAMES}, or, if they number objects, save "
            "labels > 0."
        )
    if count < 2:
        raise DataError(f"{path}: expected masks of at least two classes, got only {present}.")
    empty = [names[value] for value in range(count) if names and value not in values]
    if empty:
        raise DataError(f"{path}: expected pixels of the class {empty[0]!r} in some mask, got none; remove its name.")
    return tuple(names) or tuple(f"class {value}" for value in present), False


def fit_mask(mask: Tensor, classes: int, size: int, fit: Fit) -> Tensor:
    """Scale or crop a mask (height, width) as :func:`fit_images` does its image: the class with the largest share.

    Shares are the resampled masks of single classes; among equals the lower number counts, so that this commutes with
    quarter turns.
    """
    if mask.shape == (size, size):
        return mask
    single = torch.stack([mask == value for value in range(classes)]).byte() * 255
    return fit_images(single[:, None], size, fit)[:, 0].argmax(0).byte()


def _key(file: Path, top: Path) -> str:
    return str(file.relative_to(top).with_suffix(""))
