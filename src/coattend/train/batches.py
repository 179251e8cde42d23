"""Batches of tensors in memory, in an order that depends on seed and epoch only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from coattend.data import Dataset, Preprocessing, Split, make_preprocessing
from coattend.train.recipe import Recipe


@dataclass(frozen=True)
class Examples:
    """Preprocessed images and labels on the training device."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Prepared:
    """The three splits, preprocessed; ``valid`` is empty if the recipe trains on it."""

    train: Examples
    valid: Examples
    test: Examples
    preprocessing: Preprocessing


def prepare(data: Dataset, recipe: Recipe, device: torch.device) -> Prepared:
    """Cut the splits to the recipe's sizes, fit the preprocessing to the training images, and apply it to all."""
    joint = recipe.train_on == "train+valid"
    train = _first(data.train_and_valid() if joint else data.train, recipe.train_images)
    valid = _first(data.valid, 0 if joint else recipe.valid_images)
    preprocessing = make_preprocessing(recipe.preprocessing, recipe.clip).fit(train.images)

    def examples(split: Split) -> Examples:
        images = preprocessing(split.images) if len(split) else split.images.float()
        return Examples(images.to(device), split.labels.to(device))

    return Prepared(examples(train), examples(valid), examples(_first(data.test, recipe.test_images)), preprocessing)


def shuffled_batches(
    examples: Examples, batch: int, seed: int, epoch: int, rank: int, world: int
) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Yield this process's share of every joint batch, and the size of the joint batch; the last may be smaller.

    Every process draws the same order and takes its own part of each batch, so that several processes together see
    what one would see.
    """
    generator = torch.Generator().manual_seed(hash_seed(seed, epoch, 0))
    order = torch.randperm(len(examples), generator=generator).to(examples.labels.device)
    for joint in order.split(batch):
        if len(joint) >= world:
            part = joint.tensor_split(world)[rank]
            yield examples.images[part], examples.labels[part], len(joint)


SEEDS = 2**32  # hash_seed of a larger one exceeds the 63 bits of a generator's seed


def hash_seed(seed: int, epoch: int, stream: int) -> int:
    """Return one number for three, different for every triple that occurs."""
    return (seed * 1_000_003 + epoch) * 1_009 + stream


def _first(split: Split, count: int | None) -> Split:
    return split if count is None else Split(split.images[:count], split.labels[:count])
