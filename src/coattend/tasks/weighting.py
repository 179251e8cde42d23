"""Weights that make rare classes count as much as frequent ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from coattend.data.dataset import AnySplit

PROBES = 500  # images whose targets are read to count classes, where they are not in memory


def known_targets(train: AnySplit) -> Tensor:
    """Return the targets of a split; those that are not in memory are read for a sample of evenly spaced images."""
    if train.known_labels is not None:
        return train.known_labels
    index = torch.linspace(0, len(train) - 1, min(PROBES, len(train))).long().unique()
    return train.at(index).in_memory().labels


def balanced_weights(counts: Tensor, classes: Sequence[str]) -> Tensor:
    """Return weights inversely proportional to the counts, whose mean over all examples is 1."""
    if 0 in counts.tolist():
        missing = classes[counts.tolist().index(0)]
        raise ValueError(f"class_weights=balanced needs training examples of every class, got none of {missing!r}.")
    return (counts.sum() / (len(counts) * counts)).float()
