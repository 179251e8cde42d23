"""Datasets: three splits of images with targets, in memory or read when they are needed, and their provenance."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from coattend.data.streaming import DataError as DataError
from coattend.data.streaming import Digest, StreamedSplit

SHOWN = 12  # class names in a summary
# Type and number of axes of the targets of a split, by task. Tasks of other packages may have other forms.
FORMS: dict[str, tuple[torch.dtype, int, str]] = {
    "classification": (torch.int64, 1, "one int64 label per image"),
    "multi-label": (torch.uint8, 2, "a uint8 row of 0 and 1 per image, one for each class"),
    "regression": (torch.float32, 2, "a float32 row of numbers per image, one for each target"),
    "segmentation": (torch.uint8, 3, "a uint8 mask (height, width) of class numbers per image"),
}


@dataclass(frozen=True, eq=False)
class Split:
    """Images (n, channels, height, width) with values from 0 to 255, their targets, and the names of their files.

    Images are bytes, or float32 where the files have 16 bits. Targets, called labels, are one int64 per image, or have
    one of the other ``FORMS``.
    """

    images: Tensor
    labels: Tensor
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        if not isinstance(images, Tensor) or not isinstance(labels, Tensor):
            raise DataError(
                f"Split expects tensors of images and labels, got {type(images).__name__} and {type(labels).__name__}; "
                "convert them with torch.as_tensor."
            )
        if images.dtype not in (torch.uint8, torch.float32) or images.ndim != 4:
            raise DataError(
                f"Split expects uint8 images (n, channels, height, width), got {images.dtype} {tuple(images.shape)}; "
                "scale to 0..255 and add the missing axes."
            )
        known = [(dtype, axes) for dtype, axes, _ in FORMS.values()]
        if (labels.dtype, labels.ndim) not in known or labels.shape[:1] != images.shape[:1]:
            raise DataError(
                f"Split expects one int64 label per image, ({len(images)},), got {labels.dtype} "
                f"{tuple(labels.shape)}; pass labels.long(), one for each image."
            )
        if labels.ndim == 3 and labels.shape[1:] != images.shape[2:]:
            raise DataError(
                f"Split expects masks of the size of the images, {tuple(images.shape[2:])}, got "
                f"{tuple(labels.shape[1:])}."
            )
        if self.names is not None and len(self.names) != len(images):
            raise DataError(f"Split expects one name per image, {len(images)}, got {len(self.names)}.")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def known_labels(self) -> Tensor:
        """The targets, which are in memory."""
        return self.labels

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def at(self, index: Tensor) -> Split:
        """Return the images at some indices, in that order."""
        names = None if self.names is None else tuple(self.names[i] for i in index.tolist())
        return Split(self.images[index], self.labels[index], names)

    def head(self, count: int | None) -> Split:
        """Return the first images, or all."""
        names = None if self.names is None else self.names[:count]
        return self if count is None else Split(self.images[:count], self.labels[:count], names)

    def in_memory(self) -> Split:
        """Return the split itself."""
        return self

    def feed(self, digest: Digest) -> None:
        """Add what tells these images and targets from others to a digest."""
        digest.update(json.dumps([*self.images.shape]).encode())
        for tensor in (self.images, self.labels):
            digest.update(tensor.contiguous().numpy().data)


AnySplit = Split | StreamedSplit


def concatenate(parts: Sequence[AnySplit]) -> AnySplit:
    """Concatenate splits; the result is in memory if all of them are."""
    if any(isinstance(part, StreamedSplit) for part in parts):
        return StreamedSplit.concatenate([p if isinstance(p, StreamedSplit) else _streamed(p) for p in parts])
    splits = [part for part in parts if isinstance(part, Split)]
    images, labels = torch.cat([part.images for part in splits]), torch.cat([part.labels for part in splits])
    named = [part.names for part in splits if part.names is not None]
    return Split(images, labels, tuple(chain(*named)) if len(named) == len(parts) else None)


def _streamed(split: Split) -> StreamedSplit:
    digest = hashlib.sha256()
    split.feed(digest)
    source = torch.utils.data.TensorDataset(split.images, split.labels)
    return StreamedSplit(source, split.image_shape, split.labels, split.names, digest.hexdigest())


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training, validation and test split; ``provenance`` is recorded in every run.

    - classes: names of the classes; for regression, of the numbers that are predicted
    - task: what the targets are for: classification, multi-label, regression, segmentation or a registered one
    - skipped: files that were left out, and why
    """

    name: str
    train: AnySplit
    valid: AnySplit
    test: AnySplit
    classes: tuple[str, ...]
    provenance: str
    task: str = "classification"
    skipped: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not all(isinstance(part, AnySplit) for part in self.splits().values()):
            kinds = {name: type(part).__name__ for name, part in self.splits().items()}
            raise DataError(f"{self.name}: expected train, valid and test to be Splits, got {kinds}.")
        shapes = {split: part.image_shape for split, part in self.splits().items()}
        if len(set(shapes.values())) > 1:
            raise DataError(f"{self.name}: expected images of one shape in all splits, got {shapes}; resize them.")
        for split, part in self.splits().items():
            if part.known_labels is not None and len(part):
                self._check_targets(split, part.known_labels)

    def _check_targets(self, split: str, labels: Tensor) -> None:
        dtype, axes, words = FORMS.get(self.task, (labels.dtype, labels.ndim, ""))
        if (labels.dtype, labels.ndim) != (dtype, axes):
            raise DataError(
                f"{self.name}: expected {words} for {self.task}, got {labels.dtype} {tuple(labels.shape)} in {split}."
            )
        if self.task in ("multi-label", "regression") and labels.shape[1] != len(self.classes):
            raise DataError(
                f"{self.name}: expected {len(self.classes)} {split} targets per image, one for each of "
                f"{', '.join(self.classes[:SHOWN])}, got {labels.shape[1]}."
            )
        if self.task == "regression" and not bool(labels.isfinite().all()):
            raise DataError(f"{self.name}: expected finite {split} targets, got nan or inf; fill in or remove these.")
        most = {"classification": len(self.classes), "segmentation": len(self.classes), "multi-label": 2}.get(self.task)
        if most is not None and not 0 <= int(labels.min()) <= int(labels.max()) < most:
            raise DataError(
                f"{self.name}: expected {split} labels in 0..{most - 1}, one per class, got "
                f"{int(labels.min())}..{int(labels.max())}; number the classes from 0."
            )

    def splits(self) -> dict[str, AnySplit]:
        """Return the splits by name."""
        return {"train": self.train, "valid": self.valid, "test": self.test}

    def train_and_valid(self) -> AnySplit:
        """Concatenate both, for final runs: 12,000 images of rotated MNIST, 50,000 of CIFAR-10."""
        return concatenate([self.train, self.valid])

    def summary(self) -> str:
        """Describe the dataset in one line: number and shape of the images, classes and provenance."""
        counts = " / ".join(f"{len(part):,}" for part in self.splits().values())
        shown = ", ".join(self.classes[:SHOWN]) + (", ..." if len(self.classes) > SHOWN else "")
        shape = " x ".join(map(str, self.image_shape))
        kind = "targets" if self.task == "regression" else "classes"
        read = ", read from disk while training" if isinstance(self.train, StreamedSplit) else ""
        task = "" if self.task == "classification" else f" for {self.task}"
        return (
            f"{self.name}: {counts} images {shape} to train, validate and test{task}, {len(self.classes)} {kind} "
            f"({shown}){read}; {self.provenance}"
        )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        return self.train.image_shape

    def in_memory(self) -> Dataset:
        """Return the dataset with all images in memory."""
        train, valid, test = (part.in_memory() for part in self.splits().values())
        return replace(self, train=train, valid=valid, test=test)
