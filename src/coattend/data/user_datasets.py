"""Datasets in Python: any map-style dataset per split, such as a ``torch.utils.data.Dataset``."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch

from coattend.data.dataset import FORMS, DataError, Dataset
from coattend.data.streaming import StreamedSplit

PROBES = 3  # examples of each split that are looked at


def from_datasets(
    name: str,
    train: Any,
    valid: Any,
    test: Any,
    *,
    classes: Sequence[str],
    task: str = "classification",
    provenance: str = "",
) -> Dataset:
    """Return a dataset of the user's own: three map-style datasets of pairs (image, target).

    Images are (channels, height, width) of one shape, bytes or float32 from 0 to 255; they are read by worker processes
    when a batch needs them. Targets are numbers of classes; for other tasks 0 and 1 for each class (multi-label),
    float32 numbers (regression) or uint8 masks (segmentation). ``classes`` are the names of the classes, or of the
    numbers. ``provenance`` is what identifies the images; a run continues only with equal provenance.
    """
    splits = [
        _streamed(f"{name} {split}", source, classes, task, provenance)
        for split, source in (("train", train), ("valid", valid), ("test", test))
    ]
    train, valid, test = splits
    return Dataset(name, train, valid, test, tuple(classes), provenance or f"own dataset {name}", task)


def _streamed(name: str, source: Any, classes: Sequence[str], task: str, provenance: str) -> StreamedSplit:
    try:
        length = len(source)
    except TypeError as error:
        raise DataError(
            f"{name}: from_datasets expects datasets with a length, got {type(source).__name__}."
        ) from error
    if not length:
        raise DataError(f"{name}: from_datasets expects datasets with a length above 0, got none.")
    image = torch.as_tensor(source[0][0])
    if image.ndim != 3:
        raise DataError(f"{name}: expected images (channels, height, width), got {tuple(image.shape)}.")
    shape = (image.shape[0], image.shape[1], image.shape[2])
    digest = hashlib.sha256(f"{provenance} {length}".encode())
    split = StreamedSplit(source, shape, None, None, "")
    for index in sorted({0, length // 2, length - 1})[:PROBES]:
        image, target = split.read(index)
        _check_target(name, target, classes, task)
        digest.update(image.contiguous().numpy().data)
    return StreamedSplit(source, shape, None, None, digest.hexdigest())


def _check_target(name: str, target: torch.Tensor, classes: Sequence[str], task: str) -> None:
    dtype, axes, words = FORMS.get(task, (target.dtype, target.ndim + 1, ""))
    if target.dtype != dtype or target.ndim != axes - 1:
        raise DataError(f"{name}: expected {words} for {task}, got {target.dtype} {tuple(target.shape)} for an image.")
    if task in ("classification", "segmentation") and not 0 <= int(target.min()) <= int(target.max()) < len(classes):
        raise DataError(f"{name}: expected a label from 0 to {len(classes) - 1}, got {int(target.max())}.")
