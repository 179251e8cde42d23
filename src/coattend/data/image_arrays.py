"""An ``.npz`` of the user's with the arrays ``images``, ``labels`` and perhaps ``classes``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coattend.data.dataset import DataError, Split
from coattend.data.storage import UNREADABLE, as_tensor, opened_npz


def read_arrays(path: Path) -> tuple[Split, tuple[str, ...]]:
    """Images with labels, and the names of the classes; the numbers themselves if they have no names."""
    try:
        with opened_npz(path) as file:
            images, labels = file["images"], file["labels"]
            names = file["classes"] if "classes" in file.files else None
    except UNREADABLE as error:
        raise DataError(
            f"{path} cannot be read ({error or type(error).__name__}); expected an .npz with the arrays images and "
            "labels, without pickled objects: np.savez(path, images=..., labels=...)."
        ) from error
    images = _channels_first(images, path)
    if not np.issubdtype(labels.dtype, np.integer) or labels.shape != (len(images),):
        raise DataError(
            f"{path}: expected one whole-number label per image, ({len(images)},), got {labels.dtype} {labels.shape}."
        )
    if names is not None and names.ndim != 1:
        raise DataError(f"{path}: expected classes to be a list of names, got an array of shape {names.shape}.")
    present = np.unique(labels)
    classes = tuple(map(str, present if names is None else names))
    # Without names every number must occur; with them a class may have no image, which only training refuses.
    whole = names is not None and len(present) and present[0] >= 0 and present[-1] < len(classes)
    if not whole and not np.array_equal(present, np.arange(len(classes))):
        raise DataError(
            f"{path}: expected at least two classes and every label from 0 to {len(classes) - 1} among the labels, got "
            f"{present[:20].tolist()}; renumber them with np.unique(labels, return_inverse=True)."
        )
    return Split(as_tensor(images), as_tensor(labels)), classes


def _channels_first(images: NDArray[Any], path: Path) -> NDArray[np.uint8]:
    grey, coloured = images.ndim == 3, images.ndim == 4
    first, last = coloured and images.shape[1] in (1, 3), coloured and images.shape[-1] in (1, 3)
    if images.dtype != np.uint8 or not (grey or first or last) or 0 in images.shape:
        raise DataError(
            f"{path}: expected uint8 images (n, height, width), (n, channels, height, width) or (n, height, width, "
            f"channels) with 1 or 3 channels, got {images.dtype} {images.shape}."
        )
    if grey:
        return images[:, None]
    return images if first else images.transpose(0, 3, 1, 2)
