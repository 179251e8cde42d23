"""What a conversion costs or gains: how well images are recognized before and after it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coattend.data import load_data
from coattend.groups import FiniteGroup, transform_image
from coattend.nn.observe import evaluating

IMAGES = 2000  # at most, the first of the test split
BATCH = 100


@dataclass(frozen=True)
class Recognition:
    """How well a network recognizes images: shares of them from 0 to 1.

    - upright: recognized as they are
    - in_poses: recognized, the mean over all poses of the group
    - consistent: given the same class in all poses
    """

    upright: float
    in_poses: float
    consistent: float

    def __str__(self) -> str:
        return (
            f"{100 * self.upright:.2f} % right, {100 * self.in_poses:.2f} % over all poses, "
            f"{100 * self.consistent:.2f} % with one answer for all poses"
        )


def recognition(model: nn.Module, images: Tensor, labels: Tensor, group: FiniteGroup) -> Recognition:
    """Measure a network that classifies images, as it takes them, in every pose of a group."""
    answers = []
    with evaluating(model):
        for g in group.elements:
            moved = transform_image(images, group, g)
            answers.append(torch.cat([model(part).argmax(1) for part in moved.split(BATCH)]))
    right = torch.stack(answers) == labels
    same = (torch.stack(answers) == answers[0]).all(0)
    return Recognition(*(float(values.double().mean()) for values in (right[0], right, same)))


def held_out(name: str, size: int, preprocessing: nn.Module | None) -> tuple[Tensor, Tensor]:
    """Return test images of a dataset, preprocessed, or without preprocessing from 0 to 1, and their classes."""
    data = load_data(name)
    if data.task != "classification":
        raise ValueError(f"expected images with one class each to recognize, got {name} for {data.task}.")
    if data.image_shape[1:] != (size, size):
        data = load_data(name, size=size)
    split = data.test if len(data.test) else data.valid
    part = split.at(torch.arange(min(IMAGES, len(split)))).in_memory()
    images = part.images.float() / 255 if preprocessing is None else preprocessing(part.images)
    return images.float(), part.labels
