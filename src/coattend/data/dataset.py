"""A data set in memory: three splits of images with labels, and where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

SHOWN = 12  # class names in a summary


class DataError(ValueError):
    """A data set that is missing, damaged or out of reach; the message is meant for the user as it stands."""


@dataclass(frozen=True, eq=False)
class Split:
    """Images (n, channels, height, width) of bytes, their labels (n,), and the files they were read from, if any."""

    images: Tensor
    labels: Tensor
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        if not isinstance(images, Tensor) or not isinstance(labels, Tensor):
            raise DataError(
                f"Split expects tensors of images and labels, got {type(images).__name__} and {type(labels).__name__}; "
                "torch.as_tensor makes them."
            )
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise DataError(
                f"Split expects uint8 images (n, channels, height, width), got {images.dtype} {tuple(images.shape)}; "
                "scale to 0..255 and add the missing axes."
            )
        if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
            raise DataError(
                f"Split expects one int64 label per image, ({len(images)},), got {labels.dtype} "
                f"{tuple(labels.shape)}; pass labels.long() of the images' length."
            )
        if self.names is not None and len(self.names) != len(images):
            raise DataError(f"Split expects one name per image, {len(images)}, got {len(self.names)}.")

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, index: Tensor) -> Split:
        """The images at some places, in that order."""
        names = None if self.names is None else tuple(self.names[i] for i in index.tolist())
        return Split(self.images[index], self.labels[index], names)


def concatenate(parts: Sequence[Split]) -> Split:
    """Splits one after the other."""
    names = [part.names for part in parts]
    known = tuple(name for some in names if some is not None for name in some) if None not in names else None
    return Split(torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts]), known)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training, validation and test split; ``provenance`` goes into the record of every run."""

    name: str
    train: Split
    valid: Split
    test: Split
    classes: tuple[str, ...]
    provenance: str

    def __post_init__(self) -> None:
        if not all(isinstance(part, Split) for part in self.splits().values()):
            kinds = {name: type(part).__name__ for name, part in self.splits().items()}
            raise DataError(f"{self.name}: expected a Split for each of them, got {kinds}.")
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
        """The splits by name."""
        return {"train": self.train, "valid": self.valid, "test": self.test}

    def train_and_valid(self) -> Split:
        """Both joined, in order, for final runs: 12,000 of rotated MNIST, 50,000 of CIFAR-10."""
        return concatenate([self.train, self.valid])

    def summary(self) -> str:
        """One line for a person: how many images of which shape and classes, and where they come from."""
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
