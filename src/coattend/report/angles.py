"""Test error by the angle an image is turned to, and how many images that can be afforded on."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from coattend.cooccurrence import operations
from coattend.data.augmentation import turned_batch
from coattend.models import is_exact
from coattend.models.classifier import TrainedNetwork
from coattend.nn import evaluating

STEP = 5
ANGLES = tuple(range(0, 360, STEP))
AFFORDABLE = 8e10  # multiply-adds that all curves of a page may cost: some ten seconds
FEWEST, MOST = 8, 200


def error_by_angle(trained: TrainedNetwork, images: Tensor, labels: Tensor) -> list[float]:
    """Percent of the images (n, channels, height, width) of bytes that are misread at each of ANGLES.

    Images are turned counter-clockwise before the preprocessing, as a camera would turn them: by less than 90 degrees
    with interpolation, the border being continued, then by exact quarter turns. Where :func:`repeats` says that
    quarter turns change nothing, the first quarter is measured and repeated.
    """
    quarters = 1 if repeats(trained) else 4
    errors: dict[int, float] = {}
    with evaluating(trained.network):
        for degrees in range(0, 90, STEP):
            tilt = torch.full((len(images),), math.radians(degrees), dtype=torch.float32)
            tilted = turned_batch(images.float(), tilt).clamp(0, 255)
            for quarter in range(quarters):
                turned = trained.preprocessing.apply(torch.rot90(tilted, quarter, (-2, -1)))
                read = trained.network(turned).argmax(1)
                errors[degrees + 90 * quarter] = 100 * int((read != labels).sum()) / len(labels)
    return [errors[degrees % (90 * quarters)] for degrees in ANGLES]


def repeats(trained: TrainedNetwork) -> bool:
    """Whether quarter turns of the input provably leave the logits as they are, but for rounding."""
    group, (_, size, _) = trained.network.group, trained.image_shape
    turning = group.planar is not None and any((m == [[0, -1], [1, 0]]).all() for m in group.planar)
    return turning and is_exact(trained.network, size) and trained.preprocessing.commutes_with_rotation


def affordable_images(trained: TrainedNetwork, networks: int) -> int:
    """On how many images the curve of one of so many networks is measured: the same for the same networks."""
    per_angle = sum(operations(trained.network, trained.image_shape).values())
    angles = len(ANGLES) // (4 if repeats(trained) else 1)
    return max(FEWEST, min(MOST, int(AFFORDABLE / (per_angle * angles * networks))))
