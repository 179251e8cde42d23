"""The user's ``.npz`` files: images with labels, masks or numbers, with or without splits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coattend.data.dataset import Split
from coattend.data.images import DEEPEST
from coattend.data.listing import SPLIT_FOLDERS, WHOLE
from coattend.data.masks import verified_classes
from coattend.data.store import UNREADABLE, as_tensor, open_npz
from coattend.data.streaming import DataError

MOST_CHANNELS = 64
TARGETS = ("labels", "masks", "targets")


@dataclass(frozen=True)
class NpzImages:
    """The content of an ``.npz``; ``groups`` are those of the images in each split, if there are any."""

    parts: dict[str, Split]
    classes: tuple[str, ...]
    task: str
    groups: dict[str, tuple[str, ...] | None]


def read_npz(path: Path) -> NpzImages:
    """Read the arrays ``images`` and ``labels``, ``masks`` or ``targets``, or those with ``train_`` before their names.

    Whole numbers (n,) are classes, 0 and 1 (n, classes) several labels, ``targets`` (n, k) numbers to predict, and
    ``masks`` (n, height, width) class numbers. ``classes`` names the classes, ``groups`` what must not be divided.
    """
    try:
        with open_npz(path) as file:
            arrays = {key: file[key] for key in file.files if key.split("_")[-1] in ("images", "groups", *TARGETS)}
            names = file["classes"] if "classes" in file.files else None
            if not any(key.endswith("images") for key in arrays) or len(arrays) < 2:
                raise KeyError(f"it has {', '.join(file.files)}")
    except UNREADABLE as error:
        raise DataError(
            f"{path} cannot be read ({error or type(error).__name__}); expected an .npz with the arrays images and "
            "labels, without pickled objects: np.savez(path, images=..., labels=...)."
        ) from error
    if names is not None and names.ndim != 1:
        raise DataError(f"{path}: expected classes to be a list of names, got an array of shape {names.shape}.")
    given = {key[: -len("images")].rstrip("_"): key for key in arrays if key.endswith("images")}
    unknown = [prefix for prefix in given if prefix and prefix not in SPLIT_FOLDERS]
    if unknown or ("" in given and len(given) > 1):
        raise DataError(
            f"{path}: expected images, or train_images, val_images and test_images, got {', '.join(given)}."
        )
    images, targets, groups = {}, {}, {}
    for prefix in given:
        split, start = SPLIT_FOLDERS.get(prefix, WHOLE), f"{prefix}_" if prefix else ""
        kinds = [kind for kind in TARGETS if start + kind in arrays]
        if len(kinds) != 1:
            raise DataError(f"{path}: expected {start}labels, {start}masks or {start}targets, got {kinds or 'none'}.")
        images[split] = _channels_first(arrays[f"{start}images"], path)
        targets[split] = (kinds[0], arrays[start + kinds[0]])
        groups[split] = tuple(map(str, arrays[f"{start}groups"])) if f"{start}groups" in arrays else None
    kinds = sorted({kind for kind, _ in targets.values()})
    if len(kinds) > 1:
        raise DataError(f"{path}: expected targets of one kind in all splits, got {', '.join(kinds)}.")
    for split, (kind, values) in targets.items():
        if values.shape[:1] != images[split].shape[:1]:
            expected = "one integer label per image" if kind == "labels" else f"one of the {kind} per image"
            raise DataError(f"{path}: expected {expected}, ({len(images[split])},), got {values.dtype} {values.shape}.")
    arrays_of = {split: values for split, (_, values) in targets.items()}
    task, classes, tensors = _read_targets(path, kinds[0], arrays_of, names)
    parts = {split: Split(_as_images(images[split]), tensors[split]) for split in images}
    return NpzImages(parts, classes, task, groups)


def _read_targets(
    path: Path, kind: str, targets: dict[str, NDArray[Any]], names: NDArray[Any] | None
) -> tuple[str, tuple[str, ...], dict[str, torch.Tensor]]:
    if kind == "targets":
        return _numbers(path, targets, names)
    if kind == "masks":
        return _masks(path, targets, names)
    columns = {values.shape[1] if values.ndim == 2 else 0 for values in targets.values()}
    if columns == {1}:  # as in MedMNIST
        targets = {split: values[:, 0] for split, values in targets.items()}
    elif len(columns) == 1 and columns != {0}:
        return _several_labels(path, targets, names)
    for values in targets.values():
        if not np.issubdtype(values.dtype, np.integer) or values.ndim != 1:
            raise DataError(
                f"{path}: expected one integer label per image, ({len(values)},), got {values.dtype} {values.shape}."
            )
    present = np.unique(np.concatenate(list(targets.values())))
    classes = tuple(map(str, present if names is None else names))
    # Without names every number has to occur; with names a class may have no image, which only training refuses.
    whole = names is not None and len(present) and present[0] >= 0 and present[-1] < len(classes)
    if not whole and not np.array_equal(present, np.arange(len(classes))):
        raise DataError(
            f"{path}: expected at least two classes and every label from 0 to {len(classes) - 1} among the labels, got "
            f"{present[:20].tolist()}; renumber them with np.unique(labels, return_inverse=True)."
        )
    return "classification", classes, {split: as_tensor(values) for split, values in targets.items()}


def _several_labels(
    path: Path, targets: dict[str, NDArray[Any]], names: NDArray[Any] | None
) -> tuple[str, tuple[str, ...], dict[str, torch.Tensor]]:
    for values in targets.values():
        if values.dtype.kind not in "biu" or not np.isin(values, (0, 1)).all():
            raise DataError(f"{path}: expected labels (n, classes) of 0 and 1, got {values.dtype} {values.shape}.")
    count = next(iter(targets.values())).shape[1]
    classes = tuple(map(str, range(count) if names is None else names))
    return "multi-label", classes, {s: torch.from_numpy(v.astype(np.uint8)) for s, v in targets.items()}


def _numbers(
    path: Path, targets: dict[str, NDArray[Any]], names: NDArray[Any] | None
) -> tuple[str, tuple[str, ...], dict[str, torch.Tensor]]:
    tensors = {}
    for split, values in targets.items():
        if values.dtype.kind not in "biuf" or values.ndim not in (1, 2):
            raise DataError(f"{path}: expected targets (n,) or (n, k) of numbers, got {values.dtype} {values.shape}.")
        tensors[split] = torch.from_numpy(values.astype(np.float32).reshape(len(values), -1))
    count = next(iter(tensors.values())).shape[1]
    default = ("target",) if count == 1 else tuple(f"target {i}" for i in range(count))
    return "regression", default if names is None else tuple(map(str, names)), tensors


def _masks(
    path: Path, targets: dict[str, NDArray[Any]], names: NDArray[Any] | None
) -> tuple[str, tuple[str, ...], dict[str, torch.Tensor]]:
    values: dict[int, str] = {}
    for masks in targets.values():
        if masks.dtype.kind not in "biu" or masks.ndim != 3:
            raise DataError(
                f"{path}: expected masks (n, height, width) of class numbers, got {masks.dtype} {masks.shape}."
            )
        values.update({int(value): str(path) for value in np.unique(masks)})
    classes, foreground = verified_classes(path, () if names is None else tuple(map(str, names)), values)
    divided = 255 if foreground else 1
    return "segmentation", classes, {s: torch.from_numpy((m // divided).astype(np.uint8)) for s, m in targets.items()}


def _as_images(images: NDArray[Any]) -> torch.Tensor:
    if images.dtype == np.uint8:
        return as_tensor(images)
    return torch.from_numpy(images.astype(np.float32) * np.float32(255 / DEEPEST))


def _channels_first(images: NDArray[Any], path: Path) -> NDArray[Any]:
    grey, coloured = images.ndim == 3, images.ndim == 4
    first, last = coloured and images.shape[1] in (1, 3), coloured and images.shape[-1] in (1, 3)
    if coloured and not first and not last:  # several channels: the smaller axis
        first = images.shape[1] <= min(MOST_CHANNELS, images.shape[-1] - 1)
        last = not first and images.shape[-1] <= min(MOST_CHANNELS, images.shape[1] - 1)
    if images.dtype not in (np.uint8, np.uint16) or not (grey or first or last) or 0 in images.shape:
        raise DataError(
            f"{path}: expected uint8 images (n, height, width), (n, channels, height, width) or (n, height, width, "
            f"channels) with 1, 3 or a few more channels, got {images.dtype} {images.shape}."
        )
    if grey:
        return images[:, None]
    return images if first else images.transpose(0, 3, 1, 2)
