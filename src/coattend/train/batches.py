"""Batches of examples, in memory or read from disk, in an order that depends on seed and epoch only."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coattend.data import Dataset, Preprocessing, StreamedSplit, make_preprocessing
from coattend.data.dataset import AnySplit, Split
from coattend.data.streaming import BatchReader, Unreadable
from coattend.models.records import RunError
from coattend.train.recipe import Recipe

FITTED_VALUES = 1 << 25  # pixels of images on disk from which the preprocessing is computed
BY_POSITION = ("per-pixel", "zca")  # steps that learn a number for every pixel, from all images


@dataclass(frozen=True)
class Examples:
    """Preprocessed images and their targets on the training device."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def chosen(self, parts: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images and targets at each tensor of indices."""
        for part in parts:
            index = part.to(self.labels.device)
            yield self.images[index], self.labels[index]

    def in_order(self, rank: int, world: int, batch: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the images of one of several processes in batches, with their targets and indices."""
        tensors = (self.images, self.labels, torch.arange(len(self)))
        yield from zip(*(tensor.tensor_split(world)[rank].split(batch) for tensor in tensors), strict=True)

    def head(self, count: int) -> Examples:
        """Return the first examples."""
        return Examples(self.images[:count], self.labels[:count])


class StreamedExamples:
    """Examples of a split that worker processes read and this process preprocesses.

    ``unreadable`` has what could not be read, by name; ``waited`` counts the seconds that this process waited for a
    batch since the attribute was set to 0.
    """

    def __init__(
        self, split: StreamedSplit, preprocessing: Preprocessing, device: torch.device, recipe: Recipe
    ) -> None:
        self.split, self.device, self.recipe = split, device, recipe
        narrow = preprocessing if preprocessing.needs_float64 else copy.deepcopy(preprocessing).to(torch.float32)
        self.preprocessing = narrow.to(device)
        self.labels = split.known_labels
        self.unreadable: dict[str, Unreadable] = {}
        self.waited = 0.0
        self._readers: dict[bool, BatchReader] = {}

    def __len__(self) -> int:
        return len(self.split)

    def chosen(self, parts: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images and targets at each tensor of indices; an unreadable image is replaced by the next one."""
        for images, targets, _ in self._read(parts, replace=True):
            yield images, targets

    def in_order(self, rank: int, world: int, batch: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the readable images of one of several processes in batches, with their targets and indices."""
        batch = min(batch, max(self.recipe.batch, 1))  # the batch of training is known to fit into memory
        yield from self._read(torch.arange(len(self)).tensor_split(world)[rank].split(batch), replace=False)

    def head(self, count: int) -> Examples:
        """Return the first readable examples."""
        images, targets, _ = next(iter(self._read([torch.arange(min(count, len(self)))], replace=False)))
        return Examples(images, targets)

    def _read(self, parts: Sequence[Tensor], replace: bool) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        if replace not in self._readers:
            self._readers[replace] = BatchReader(self.split, self.recipe.workers, replace=replace)
        batches = self._readers[replace].read([part.tolist() for part in parts])
        while True:
            started = time.perf_counter()
            batch = next(batches, None)
            self.waited += time.perf_counter() - started
            if batch is None:
                return
            for failure in batch.unreadable:
                self._report(failure)
            if not len(batch.indices) and replace:
                raise RunError("none of the training images can be read any more; restore the files.")
            if len(batch.indices):
                images = self.preprocessing(batch.images.to(self.device))
                yield images, batch.targets.to(self.device), batch.indices

    def _report(self, failure: Unreadable) -> None:
        if self.recipe.bad_files == "stop":
            raise RunError(
                f"an image became unreadable while training: {failure.reason} The same command continues from the last "
                "whole epoch once it is restored, and with --set bad_files=skip without it."
            )
        self.unreadable.setdefault(failure.name, failure)


AnyExamples = Examples | StreamedExamples


@dataclass(frozen=True)
class Prepared:
    """The three splits, preprocessed; ``valid`` is empty if the recipe trains on it."""

    train: AnyExamples
    valid: AnyExamples
    test: AnyExamples
    preprocessing: Preprocessing

    @property
    def waited(self) -> float | None:
        """The seconds that training waited for images since :meth:`reset_waiting`; None for those in memory."""
        return self.train.waited if isinstance(self.train, StreamedExamples) else None

    def reset_waiting(self) -> None:
        """Count waiting from here."""
        if isinstance(self.train, StreamedExamples):
            self.train.waited = 0.0

    def unreadable(self) -> list[Unreadable]:
        """Return what could not be read so far, sorted by name."""
        parts = [part for part in (self.train, self.valid, self.test) if isinstance(part, StreamedExamples)]
        failures = {name: failure for part in parts for name, failure in part.unreadable.items()}
        return [failures[name] for name in sorted(failures)]


def chosen_splits(data: Dataset, recipe: Recipe) -> tuple[AnySplit, AnySplit, AnySplit]:
    """Return the splits cut to the recipe's sizes; the validation split is empty if the recipe trains on it."""
    joint = recipe.train_on == "train+valid"
    train = (data.train_and_valid() if joint else data.train).head(recipe.train_images)
    valid = data.valid.head(0 if joint else recipe.valid_images)
    return train, valid, data.test.head(recipe.test_images)


def prepare(data: Dataset, recipe: Recipe, device: torch.device) -> Prepared:
    """Cut the splits to the recipe's sizes, fit the preprocessing to the training images, and apply it to all."""
    train, valid, test = chosen_splits(data, recipe)
    preprocessing = make_preprocessing(recipe.preprocessing, recipe.clip).fit(_to_fit(train, recipe).images)

    def examples(split: AnySplit) -> AnyExamples:
        if isinstance(split, StreamedSplit):
            return StreamedExamples(split, preprocessing, device, recipe)
        images = preprocessing(split.images) if len(split) else split.images.float()
        return Examples(images.to(device), split.labels.to(device))

    return Prepared(examples(train), examples(valid), examples(test), preprocessing)


def _to_fit(train: AnySplit, recipe: Recipe) -> Split:
    """Return the images that the preprocessing is computed from: all in memory, or evenly spaced ones on disk."""
    if isinstance(train, Split):
        return train
    if any(step.startswith(BY_POSITION) for step in recipe.preprocessing):
        raise ValueError(
            f"{' and '.join(BY_POSITION)} learn from all images in memory, and these are read from disk; choose "
            "preprocessing=per-channel, or --set keep_images=memory."
        )
    count = max(1, min(len(train), FITTED_VALUES // max(1, torch.Size(train.image_shape).numel())))
    index = torch.linspace(0, len(train) - 1, count).long().unique()
    reader = BatchReader(train, recipe.workers, replace=True)
    images = [batch.images for batch in reader.read([part.tolist() for part in index.split(recipe.batch)])]
    if not all(len(part) for part in images):
        raise RunError("none of the training images can be read; check the folder.")
    return Split(torch.cat(images), torch.zeros(sum(map(len, images)), dtype=torch.int64))


def shuffled_batches(
    examples: AnyExamples,
    batch: int,
    seed: int,
    epoch: int,
    rank: int,
    world: int,
    balanced: bool = False,
) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Yield this process's share of every joint batch, and the size of the joint batch; the last may be smaller.

    Every process draws the same order and takes its own part of each batch, so that several processes together see
    what one would see. ``balanced`` draws images with replacement so that every class is as frequent as any other.
    """
    generator = torch.Generator().manual_seed(hash_seed(seed, epoch, 0))
    if balanced:
        order = torch.multinomial(_equal_chances(examples), len(examples), replacement=True, generator=generator)
    else:
        order = torch.randperm(len(examples), generator=generator)
    joints = [joint for joint in order.split(batch) if len(joint) >= world]
    shares = examples.chosen([joint.tensor_split(world)[rank] for joint in joints])
    for joint, (images, labels) in zip(joints, shares, strict=True):
        yield images, labels, len(joint)


def _equal_chances(examples: AnyExamples) -> Tensor:
    labels = examples.labels
    if labels is None or labels.dtype != torch.int64 or labels.ndim != 1:
        raise ValueError("sampling=balanced needs one class per image, known without reading it; leave it out.")
    labels = labels.cpu()
    return 1 / labels.bincount().double()[labels]


SEEDS = 2**32  # hash_seed of a larger one exceeds the 63 bits of a generator's seed


def hash_seed(seed: int, epoch: int, stream: int) -> int:
    """Return one number for three, different for every triple that occurs."""
    return (seed * 1_000_003 + epoch) * 1_009 + stream
