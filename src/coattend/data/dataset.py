"""Datasets in memory: three splits of images with labels, and their provenance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

SHOWN = 12  # class names in a summary


class DataError(ValueError):
    """A dataset is missing, damaged or not available; the message is written for the user."""


@dataclass(frozen=True, eq=False)
class Split:
    """Images (n, channels, height, width) as bytes, their labels (n,), and the names of their files, if any."""

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
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise DataError(
                f"Split expects uint8 images (n, channels, height, width), got {images.dtype} {tuple(images.shape)}; "
                "scale to 0..255 and add the missing axes."
            )
        if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
            raise DataError(
                f"Split expects one int64 label per image, ({len(images)},), got {labels.dtype} "
                f"{tuple(labels.shape)}; pass labels.long(), one for each image."
            )
        if self.names is not None and len(self.names) != len(images):
            raise DataError(f"Split expects one name per image, {len(images)}, got {len(self.names)}.")

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, index: Tensor) -> Split:
        """Return the images at some indices, in that order."""
        names = None if self.names is None else tuple(self.names[i] for i in index.tolist())
        return Split(self.images[index], self.labels[index], names)


def concatenate(parts: Sequence[Split]) -> Split:
    """Concatenate splits."""
    images, labels = torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts])
    named = [part.names for part in parts if part.names is not None]
    return Split(images, labels, tuple(chain(*named)) if len(named) == len(parts) else None)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training, validation and test split; ``provenance`` is recorded in every run."""

    name: str
    train: Split
    valid: Split
    test: Split
    classes: tuple[str, ...]
    provenance: str

    def __post_init__(self) -> None:
        if not all(isinstance(part, Split) for part in self.splits().values()):
            kinds = {name: type(part).__name__ for name, part in self.splits().items()}
            raise DataError(f"{self.name}: expected train, valid and test to be Splits, got {kinds}.")
        shapes = {split: tuple(part.images.shape[1:]) for split, part in self.splits().items()}
        if len(set(shapes.values())) > 1:
            raise DataError(f"{self.name}: expected images of one shape in all splits, got {shapes}; resize them.")
        for split, part in self.splits().items():
            if len(part) and not 0 <= int(part.labels.min()) <= int(part.labels.max()) < len(self.classes):
                raise DataError(
                    f"{self.name}: expected {split} labels in 0..{len(self.classes) - 1}, one per class, got "
                    f"{int(part.labels.min())}..{int(part.labels.max())}; number the classes from 0."
                )

    def splits(self) -> dict[str, Split]:
        """Return the splits by name."""
        return {"train": self.train, "valid": self.valid, "test": self.test}

    def train_and_valid(self) -> Split:
        """Concatenate both, for final runs: 12,000 images of rotated MNIST, 50,000 of CIFAR-10."""
        return concatenate([self.train, self.valid])

    def summary(self) -> str:
        """Describe the dataset in one line: number and shape of the images, classes and provenance."""
        counts = " / ".join(f"{len(part):,}" for part in self.splits().values())
        shown = ", ".join(self.classes[:SHOWN]) + (", ..." if len(self.classes) > SHOWN else "")
        shape = " x ".join(map(str, self.image_shape))
        return (
            f"{self.name}: {counts} images {shape} to train, validate and test, {len(self.classes)} classes ({shown}); "
            f"{self.provenance}"
        )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width
