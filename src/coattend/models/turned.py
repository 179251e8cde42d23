"""Predictions averaged over turned copies of the images."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from coattend.data.augmentation import rotate_batch
from coattend.equivariance.exactness import remaining_groups
from coattend.functional.dispatch import autocasts
from coattend.nn.checks import check_integer

QUARTER = ((0, -1), (1, 0))


def turned(model: nn.Module, turns: int = 4, within: float | None = None) -> TurnedNetwork:
    """Return a module that averages the log-probabilities of a classifier over turned copies of each image.

    ``T(x) = 1/m sum_j log_softmax(f(r_j x))`` with ``m = turns`` and rotations ``r_j`` by ``j * within / m`` degrees:
    copies within 90 degrees if all layers of the model are over groups with quarter turns, since these change nothing,
    and within 360 degrees otherwise. A network with strides that is inexact at the size of the images
    (:func:`coattend.is_exact`) needs ``within=360``. The model stays as it is, and one call costs ``turns`` of its own.

    Shapes: images (n, channels, height, width), or pixels for a ``Classifier``; returns (n, classes).

    >>> from coattend.models import create_model
    >>> turned(create_model("p4cnn").eval(), turns=3).copies.degrees
    (0.0, 30.0, 60.0)
    >>> turned(create_model("z2cnn").eval(), turns=3).copies.degrees
    (0.0, 120.0, 240.0)
    """
    return TurnedNetwork(model, turns, within)


class TurnedCopies(nn.Module):
    """Copies of a batch, rotated counter-clockwise about the centre: quarter turns exactly, the rest bicubically.

    Shapes: (n, channels, height, width) to (turns * n, channels, height, width), all images by the first angle first.
    """

    def __init__(self, degrees: tuple[float, ...]) -> None:
        super().__init__()
        self.degrees = degrees

    def forward(self, x: Tensor) -> Tensor:
        """Return the copies."""
        if autocasts(x):  # coordinates in bfloat16 would be wrong by pixels
            with torch.autocast(x.device.type, enabled=False):
                return self.forward(x)
        return torch.cat([_rotated(x, degrees) for degrees in self.degrees])

    def extra_repr(self) -> str:
        """Return the angles."""
        return ", ".join(f"{angle:g}°" for angle in self.degrees)


class TurnedNetwork(nn.Module):
    """The mean of a classifier's log-probabilities over turned copies of each image; see :func:`turned`."""

    def __init__(self, model: nn.Module, turns: int = 4, within: float | None = None) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise ValueError(f"turned expects a network, an nn.Module, got {type(model).__name__}.")
        self.turns = check_integer(self, "turns", turns, 1)
        span = (90.0 if ignores_quarter_turns(model) else 360.0) if within is None else within
        if isinstance(span, bool) or not isinstance(span, (int, float)) or not 0 < span <= 360:
            raise ValueError(f"within must be a number of degrees above 0 and up to 360, got {within!r}.")
        self.copies = TurnedCopies(tuple(j * span / self.turns for j in range(self.turns)))
        self.model = model
        self.train(model.training)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean log-probabilities."""
        return self.model(self.copies(x)).unflatten(0, (self.turns, -1)).log_softmax(-1).mean(0)


def ignores_quarter_turns(model: nn.Module) -> bool:
    """Return whether a model is over groups that contain the rotation by 90 degrees to its end."""
    groups = remaining_groups(model)
    return bool(groups) and all(
        group.planar is not None and any(np.array_equal(matrix, QUARTER) for matrix in group.planar) for group in groups
    )


def _rotated(x: Tensor, degrees: float) -> Tensor:
    quarters, rest = divmod(degrees, 90.0)
    if rest:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        x = rotate_batch(wide, wide.new_full((1,), math.radians(rest))).to(x.dtype)
    return torch.rot90(x, int(quarters), (-2, -1)) if quarters else x
