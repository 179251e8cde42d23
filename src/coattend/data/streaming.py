"""Splits larger than memory: images that worker processes read when a batch needs them."""

from __future__ import annotations

import ctypes
import hashlib
import json
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Subset

if TYPE_CHECKING:
    from coattend.data.dataset import Split

PREFETCH = 4  # batches that each worker process reads ahead


class DataError(ValueError):
    """A dataset is missing, damaged or not available; the message is written for the user."""


class Digest(Protocol):
    """A digest of hashlib."""

    def update(self, data: Any, /) -> None:
        """Add bytes."""


@dataclass(frozen=True, eq=False)
class StreamedSplit:
    """Images of one shape that a map-style dataset returns one by one, as pairs (image, target).

    - source: any ``torch.utils.data.Dataset`` with a length; image is (channels, height, width), bytes or float32 from
      0 to 255, target a number or a tensor
    - known_labels: the targets of all images, where they are known without reading an image; else None
    - fingerprint: what tells this content from another
    """

    source: Any
    image_shape: tuple[int, int, int]
    known_labels: Tensor | None
    names: tuple[str, ...] | None
    fingerprint: str

    def __len__(self) -> int:
        return len(self.source)

    def at(self, index: Tensor) -> StreamedSplit:
        """Return the split of the images at some indices, in that order."""
        chosen = index.tolist()
        names = None if self.names is None else tuple(self.names[i] for i in chosen)
        labels = None if self.known_labels is None else self.known_labels[index]
        fingerprint = hashlib.sha256(json.dumps([self.fingerprint, chosen]).encode()).hexdigest()
        return StreamedSplit(Subset(self.source, chosen), self.image_shape, labels, names, fingerprint)

    def head(self, count: int | None) -> StreamedSplit:
        """Return the split of the first images, or itself."""
        return self if count is None or count >= len(self) else self.at(torch.arange(count))

    @property
    def images(self) -> Tensor:
        """All images, read now; what needs a few of them takes :meth:`head`."""
        return self.in_memory().images

    @property
    def labels(self) -> Tensor:
        """All targets, read now unless they are known."""
        return self.in_memory().labels if self.known_labels is None else self.known_labels

    def in_memory(self) -> Split:
        """Read all images."""
        from coattend.data.dataset import Split

        examples = [self.read(i) for i in range(len(self))]
        images = torch.stack([image for image, _ in examples])
        return Split(images, torch.stack([target for _, target in examples]), self.names)

    def read(self, index: int) -> tuple[Tensor, Tensor]:
        """Read one image and its target; raise a DataError unless they have the shape and type that is expected."""
        try:
            image, target = self.source[index]
        except DataError:
            raise
        except Exception as error:  # the user's own dataset can raise anything
            raise DataError(f"{self.name_of(index)} cannot be read ({type(error).__name__}: {error}).") from error
        image, target = torch.as_tensor(image), torch.as_tensor(target)
        if image.shape != self.image_shape or image.dtype not in (torch.uint8, torch.float32):
            raise DataError(
                f"{self.name_of(index)}: expected an image {self.image_shape}, uint8 or float32 from 0 to 255, got "
                f"{image.dtype} {tuple(image.shape)}."
            )
        return image, target

    def name_of(self, index: int) -> str:
        """Return the name of an image, or its number."""
        return f"image {index}" if self.names is None else self.names[index]

    def feed(self, digest: Digest) -> None:
        """Add what tells these images and targets from others to a digest."""
        digest.update(json.dumps([self.fingerprint, len(self), self.image_shape]).encode())
        if self.known_labels is not None:
            digest.update(self.known_labels.contiguous().numpy().data)

    @staticmethod
    def concatenate(parts: Sequence[StreamedSplit]) -> StreamedSplit:
        """Return one split of several."""
        names = [part.names for part in parts if part.names is not None]
        labels = [part.known_labels for part in parts if part.known_labels is not None]
        return StreamedSplit(
            ConcatDataset([part.source for part in parts]),
            parts[0].image_shape,
            torch.cat(labels) if len(labels) == len(parts) else None,
            tuple(chain(*names)) if len(names) == len(parts) else None,
            hashlib.sha256(json.dumps([part.fingerprint for part in parts]).encode()).hexdigest(),
        )


@dataclass(frozen=True)
class Unreadable:
    """An image that could not be read while training, and why."""

    index: int
    name: str
    reason: str


@dataclass(frozen=True)
class Batch:
    """Images and targets that were read, their indices in the split, and what could not be read."""

    images: Tensor
    targets: Tensor
    indices: Tensor
    unreadable: tuple[Unreadable, ...]


class BatchReader:
    """Reads batches of a split by worker processes, in the order in which they are asked for.

    With ``replace``, for training, an image that cannot be read is replaced by the next one of the split that can, so
    that batches keep their size. Without it, unreadable images are left out. Workers end with each pass, since every
    process costs memory; those for training live on if starting them again takes seconds, where processes do not fork.
    """

    def __init__(self, split: StreamedSplit, workers: int, *, replace: bool) -> None:
        self._order = _Order()
        self._loader: DataLoader[Any] = DataLoader(
            _Examples(split, replace),
            batch_sampler=self._order,
            num_workers=workers,
            collate_fn=_collated,
            prefetch_factor=PREFETCH if workers else None,
            persistent_workers=replace and workers > 0 and multiprocessing.get_start_method() != "fork",
        )

    def read(self, batches: Sequence[list[int]]) -> Iterator[Batch]:
        """Yield every batch of indices; one of which no image could be read is left out."""
        self._order.batches = batches
        if self._loader.num_workers:
            _release_freed_memory()
        yield from (batch for batch in self._loader if len(batch.indices) or batch.unreadable)


def _release_freed_memory() -> None:
    """Return freed memory to the operating system before processes are forked.

    They would inherit it, and keep a copy of every page that this process writes to again.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:  # glibc has it
        trim(0)


class _Order:
    """The batches of one pass; a sampler that can be given another order for the next pass."""

    def __init__(self) -> None:
        self.batches: Sequence[list[int]] = ()

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


_Example = tuple[int, Tensor, Tensor]


class _Examples(torch.utils.data.Dataset[list[_Example | Unreadable]]):
    def __init__(self, split: StreamedSplit, replace: bool) -> None:
        self.split, self.replace = split, replace

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> list[_Example | Unreadable]:
        results: list[_Example | Unreadable] = []
        for distance in range(len(self.split) if self.replace else 1):
            current = (index + distance) % len(self.split)
            try:
                return [*results, (current, *self.split.read(current))]
            except DataError as error:
                results.append(Unreadable(current, self.split.name_of(current), str(error)))
        return results


def _collated(items: Sequence[Sequence[_Example | Unreadable]]) -> Batch:
    flat = [item for sequence in items for item in sequence]
    examples = [item for item in flat if not isinstance(item, Unreadable)]
    unreadable = tuple(item for item in flat if isinstance(item, Unreadable))
    if not examples:
        return Batch(torch.empty(0), torch.empty(0), torch.empty(0, dtype=torch.int64), unreadable)
    indices, images, targets = zip(*examples, strict=True)
    return Batch(torch.stack(images), torch.stack(targets), torch.tensor(indices), unreadable)
