"""The user's own images: a folder with one sub-folder per class, or an ``.npz``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coattend.data.dataset import DataError, Dataset, Split
from coattend.data.fitting import Fit, fitted, fitted_dataset
from coattend.data.image_files import read_image, sorted_images
from coattend.data.storage import SPLITS, UNREADABLE, as_tensor, opened_npz, read_dataset, sha256

SEED = 0
SHARE = 0.1  # of each class, for validation and for testing


def read_own_images(path: Path, size: int | None = None, fit: Fit = "resize") -> Dataset:
    """Three splits: as the sub-folders train, valid and test give them, else 80/10/10 of each class by a fixed seed."""
    if path.is_dir():
        return _from_folder(path, size, fit)
    if path.suffix != ".npz":
        raise DataError(
            f"{path}: expected an image folder or an .npz with images and labels, got a {path.suffix} file."
        )
    dataset = _from_npz(path)
    if size is None and dataset.image_shape[1] != dataset.image_shape[2]:
        raise DataError(f"{path}: expected square images, got {dataset.image_shape[1:]}; pass size= to make them so.")
    return dataset if size is None else fitted_dataset(dataset, size, fit)


def _from_folder(path: Path, size: int | None, fit: Fit) -> Dataset:
    if (path / "train").is_dir() and (path / "test").is_dir():
        folders = {split: path / split for split in SPLITS}
        if not folders["valid"].is_dir():
            raise DataError(f"{path} has the folders train and test; expected train, valid and test, add valid.")
    else:
        folders = {"whole": path}
    classes = sorted({child.name for top in folders.values() for child in top.iterdir() if _is_class(child)})
    if len(classes) < 2:
        raise DataError(f"{path}: expected a sub-folder of images per class, at least two, got {classes}.")
    parts = {split: _read_classes(top, classes, size, fit) for split, top in folders.items()}
    channels = max(part.images.shape[1] for part in parts.values())
    parts = {split: Split(_with_channels(part.images, channels), part.labels) for split, part in parts.items()}
    return _dataset(path, parts, tuple(classes))


def _is_class(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith((".", "_"))


def _read_classes(top: Path, classes: list[str], size: int | None, fit: Fit) -> Split:
    images: list[Tensor] = []
    labels: list[int] = []
    first: Path | None = None
    for label, name in enumerate(classes):
        files = sorted_images(top / name)
        if not files:
            raise DataError(f"{top / name}: expected images of the class {name!r}, got none; add some or remove it.")
        for file in files:
            image = read_image(file)
            image = image if size is None else fitted(image[None], size, fit)[0]
            first = first or file
            if image.shape[1] != image.shape[2] or (images and image.shape[1:] != images[0].shape[1:]):
                raise DataError(
                    f"{file}: expected square images of one size, got {tuple(image.shape[1:])} pixels here and "
                    f"{tuple(images[0].shape[1:]) if images else 'none before'} in {first.name}; pass size= to make "
                    "them so."
                )
            images.append(image)
            labels.append(label)
    channels = max(len(image) for image in images)
    return Split(torch.stack([_with_channels(image, channels) for image in images]), torch.tensor(labels))


def _with_channels(images: Tensor, channels: int) -> Tensor:
    """Grey among colours becomes three equal channels."""
    return images if images.shape[-3] == channels else images.repeat_interleave(channels, dim=-3)


def _from_npz(path: Path) -> Dataset:
    try:
        with opened_npz(path) as file:
            if {"train_images", "sha256"} <= set(file.files):
                return read_dataset(path, path.stem, "write it anew")
            images, labels = file["images"], file["labels"]
            names = [str(name) for name in file["classes"]] if "classes" in file.files else None
    except UNREADABLE as error:
        raise DataError(
            f"{path} cannot be read ({error}); expected an .npz with the arrays images and labels, without pickled "
            "objects: np.savez(path, images=..., labels=...)."
        ) from error
    count = len(labels) if labels.ndim == 1 else -1
    if not np.issubdtype(labels.dtype, np.integer) or count != len(images):
        raise DataError(
            f"{path}: expected one whole-number label per image, ({len(images)},), got {labels.dtype} {labels.shape}."
        )
    present = np.unique(labels)
    classes = list(map(str, present)) if names is None else names
    if len(classes) < 2 or not np.array_equal(present, np.arange(len(classes))):
        raise DataError(
            f"{path}: expected at least two classes and every label from 0 to {len(classes) - 1} among the labels, got "
            f"{present[:20].tolist()}; renumber them with np.unique(labels, return_inverse=True)."
        )
    split = Split(as_tensor(_channels_first(images, path)), as_tensor(labels))
    return _dataset(path, {"whole": split}, tuple(classes))


def _channels_first(images: NDArray[np.uint8], path: Path) -> NDArray[np.uint8]:
    grey, first, last = images.ndim == 3, images.ndim == 4 and images.shape[1] in (1, 3), images.shape[-1] in (1, 3)
    if images.dtype != np.uint8 or not (grey or first or (images.ndim == 4 and last)):
        raise DataError(
            f"{path}: expected uint8 images (n, height, width), (n, channels, height, width) or (n, height, width, "
            f"channels) with 1 or 3 channels, got {images.dtype} {images.shape}."
        )
    if grey:
        return images[:, None]
    return images if first else images.transpose(0, 3, 1, 2)


def _dataset(path: Path, parts: dict[str, Split], classes: tuple[str, ...]) -> Dataset:
    digest = sha256(np.array([sha256(x.numpy()) for part in parts.values() for x in (part.images, part.labels)]))
    how = f"split 80/10/10 by seed {SEED}" if "whole" in parts else "splits as given"
    splits = _stratified(parts["whole"], classes, path) if "whole" in parts else parts
    return Dataset(path.stem, **splits, classes=classes, provenance=f"own images {path.name} ({how}, {digest[:12]})")


def _stratified(whole: Split, classes: tuple[str, ...], path: Path) -> dict[str, Split]:
    drawn = np.random.RandomState(SEED)
    chosen: dict[str, list[NDArray[np.int64]]] = {split: [] for split in SPLITS}
    for label, name in enumerate(classes):
        members = drawn.permutation(np.flatnonzero(whole.labels.numpy() == label))
        held = max(1, round(SHARE * len(members)))
        if len(members) < 3:
            raise DataError(
                f"{path}: expected at least 3 images of each class, one per split, got {len(members)} of {name!r}."
            )
        for split, part in zip(SPLITS, np.split(members, [len(members) - 2 * held, len(members) - held]), strict=True):
            chosen[split].append(part)
    indices = {split: torch.from_numpy(np.sort(np.concatenate(parts))) for split, parts in chosen.items()}
    return {split: Split(whole.images[index], whole.labels[index]) for split, index in indices.items()}
