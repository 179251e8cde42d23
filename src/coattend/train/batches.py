"""Batches of tensors that are all in memory, in an order that depends on seed and epoch alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from coattend.data import Dataset, Preprocessing, Split, make_preprocessing
from coattend.train.recipe import Recipe


@dataclass(frozen=True)
class Examples:
    """Preprocessed images and labels on the device that trains."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Prepared:
    """The three splits as the network sees them; valid is empty where the recipe trains on it."""

    train: Examples
    valid: Examples
    test: Examples
    preprocessing: Preprocessing


def prepare(data: Dataset, recipe: Recipe, device: torch.device) -> Prepared:
    """Cut the splits to the recipe's sizes, fit the preprocessing on the training part, apply it to all."""
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
    """This process's share of every joint batch, and how many examples the joint batch has; the last one may be
    smaller.

    Every process draws the same order and takes its own stretch of each batch, so that several processes see together
    what one would see alone.
    """
    generator = torch.Generator().manual_seed(hash_seed(seed, epoch, 0))
    order = torch.randperm(len(examples), generator=generator).to(examples.labels.device)
    for joint in order.split(batch):
        if len(joint) >= world:
            mine = joint.tensor_split(world)[rank]
            yield examples.images[mine], examples.labels[mine], len(joint)


SEEDS = 2**32  # hash_seed of a larger one would not fit into the 63 bits of a generator's seed


def hash_seed(seed: int, epoch: int, stream: int) -> int:
    """One number out of three, different for every triple that occurs."""
    return (seed * 1_000_003 + epoch) * 1_009 + stream


def _first(split: Split, count: int | None) -> Split:
    return split if count is None else Split(split.images[:count], split.labels[:count])
