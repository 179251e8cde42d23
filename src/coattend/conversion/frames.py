"""Maps as batches of poses, and the frames in which the images of such a batch are: common, or each pose's own."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from coattend.groups import FiniteGroup, transform_image
from coattend.nn import GroupConv2d


class Move(NamedTuple):
    """How an element moves pixels onto pixels: swap the axes, or not, then reverse some."""

    swaps: bool
    flips_rows: bool
    flips_columns: bool

    def apply(self, x: Tensor, rows: int, columns: int) -> Tensor:
        """Move a tensor whose axes ``rows`` and ``columns`` are those of an image."""
        if self.swaps:
            x = x.transpose(rows, columns)
        axes = [axis for axis, flips in ((rows, self.flips_rows), (columns, self.flips_columns)) if flips]
        return torch.flip(x, axes) if axes else x


def move_of(group: FiniteGroup, g: int) -> Move:
    """Return how an exact element moves the pixels of an image, read off its action on four pixels.

    >>> from coattend.groups import get_group
    >>> move_of(get_group("p4"), 2)
    Move(swaps=False, flips_rows=True, flips_columns=True)
    """
    pixels = torch.arange(4).reshape(2, 2)
    moved = transform_image(pixels, group, g)
    moves = (Move(*flags) for flags in itertools.product((False, True), repeat=3))
    return next(move for move in moves if torch.equal(move.apply(pixels, 0, 1), moved))


def swaps_axes(group: FiniteGroup) -> bool:
    """Return whether an element swaps rows and columns, as quarter turns do."""
    return any(move_of(group, g).swaps for g in group.elements)


class TurnPoses(nn.Module):
    """Turn the image of each pose in a batch (batch * poses, ...) by its pose, or, with ``back``, by the inverse of it.

    In the common frame a network on the group computes: pose g holds ``g.f(g^-1 x)``. In its own frame pose g holds
    ``f(g^-1 x)``, what the plain network computes, so that operations which depend on directions apply there.
    """

    def __init__(self, group: FiniteGroup, axes: tuple[int, int], back: bool) -> None:
        super().__init__()
        self.group = group
        self.axes = axes
        self.back = back

    def forward(self, x: Tensor | fx.Proxy) -> Any:
        rows, columns = self.axes
        elements = [int(self.group.inverse[g]) if self.back else g for g in self.group.elements]
        moves = [move_of(self.group, g) for g in elements]
        if not isinstance(x, fx.Proxy) and swaps_axes(self.group) and x.shape[rows] != x.shape[columns]:
            raise ValueError(
                f"this network turns maps by quarter turns, which have to be square, got {x.shape[rows]} x "
                f"{x.shape[columns]}; pass square images, or convert it over a group without quarter turns (C2, D1)."
            )
        by_pose: Any = x.unflatten(0, (-1, self.group.order))
        poses = [move.apply(by_pose.select(1, g), rows, columns) for g, move in enumerate(moves)]
        return torch.stack(poses, 1).flatten(0, 1)

    def extra_repr(self) -> str:
        return f"group={self.group.name}, axes={self.axes}, back={self.back}"


def poses_to_batch(x: Tensor) -> Tensor:
    """Return a map (batch, channels, group, height, width) as a batch (batch * group, channels, height, width)."""
    return x.transpose(1, 2).flatten(0, 1)


def batch_to_poses(x: Tensor, order: int) -> Tensor:
    """Return a batch (batch * group, channels, height, width) as a map (batch, channels, group, height, width)."""
    return x.unflatten(0, (-1, order)).transpose(1, 2)


class BatchedGroupConv2d(nn.Module):
    """A group convolution of maps as batches (batch * group, channels, height, width), for code written for images."""

    def __init__(self, conv: GroupConv2d) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor) -> Tensor:
        return poses_to_batch(self.conv(batch_to_poses(x, self.conv.group.order)))
