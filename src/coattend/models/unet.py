"""A U-Net over any group: one result per pixel, which moves with the image."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from coattend.models.blocks import Blocks, named
from coattend.models.network import EquivariantNetwork
from coattend.nn import GroupPool, OrientationField, SpatialMaxPool2d
from coattend.nn.checks import SizeError

Output = Literal["mask", "vector", "axis"]
Head = Literal["max", "mean"]
USUAL_WIDTH = 32
MOST_LEVELS = 8


class UNet(EquivariantNetwork):
    """Image -> levels of two 3x3 layers each, down and up again -> one result per pixel.

    Maps are halved by 2x2 max-pooling and doubled by 2x2 transposed group convolutions; on the way up, the map of the
    same size from the way down is joined to the channels. All of this is exact where every halving is even: at heights
    and widths that ``2**depth`` divides, and no others are accepted.

    - width: channels per pose of the largest maps, doubled with each halving; or one number per level
    - depth: how many times maps are halved
    - output: "mask", logits (batch, num_classes, height, width) of features pooled over the group; "vector" or "axis",
      ``num_classes`` fields (batch, 2 * num_classes, height, width) that turn with the image, see
      :class:`OrientationField`
    - head: how "mask" pools over the group

    ``stages`` are the levels on the way down, which ``features_only`` returns.
    """

    def __init__(
        self,
        layers: Blocks,
        width: int | tuple[int, ...] = 8,
        num_classes: int = 2,
        in_channels: int = 3,
        depth: int = 3,
        output: Output = "mask",
        head: Head = "max",
        dropout: float = 0.0,
    ) -> None:
        if output not in get_args(Output):
            raise ValueError(f"output must be one of {', '.join(get_args(Output))}, got {output!r}.")
        if head not in get_args(Head):
            raise ValueError(f"head must be one of {', '.join(get_args(Head))}, got {head!r}.")
        widths = level_widths(width, depth)

        def block(before: int, after: int) -> nn.Module:
            return layers.activate(layers.conv(before, after, 3, padding=1), dropout)

        first = layers.activate(layers.lift(in_channels, widths[0], 3, padding=1))
        stages = [named(sizes=RequireMultiple(2**depth), conv1=first, conv2=block(widths[0], widths[0]))]
        for before, after in itertools.pairwise(widths):
            stages.append(named(pool=SpatialMaxPool2d(2), conv1=block(before, after), conv2=block(after, after)))
        if output == "mask":
            last = named(over_group=GroupPool(layers.group, head), classes=nn.Conv2d(widths[0], num_classes, 1))
        else:
            last = named(field=OrientationField(widths[0], layers.group, num_classes, output))
        super().__init__(
            layers.group,
            stages,
            last,
            in_channels=in_channels,
            num_classes=num_classes,
            feature_channels=widths,
            feature_reductions=tuple(2**level for level in range(depth + 1)),
        )
        self.decoder = nn.ModuleList(
            UpLevel(layers.up(after, before), block(2 * before, before), block(before, before))
            for after, before in itertools.pairwise(reversed(widths))
        )

    @staticmethod
    def usual_widths(options: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the channels of the plain network: twice the usual width after each halving, or those given."""
        return level_widths(options.get("width", USUAL_WIDTH), options.get("depth", 3))

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the map (batch, channels, group, height, width) after the way up, of the size of the image."""
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        for level, same_size in zip(self.decoder, reversed(maps[:-1]), strict=True):
            x = level(x, same_size)
        return x


class UpLevel(nn.Module):
    """Double a map, join it with one of its new size from the way down, and apply two layers."""

    def __init__(self, up: nn.Module, conv1: nn.Module, conv2: nn.Module) -> None:
        super().__init__()
        self.up, self.conv1, self.conv2 = up, conv1, conv2

    def forward(self, x: Tensor, same_size: Tensor) -> Tensor:
        """Return the map of the next level."""
        return self.conv2(self.conv1(torch.cat([same_size, self.up(x)], 1)))


class RequireMultiple(nn.Module):
    """Pass images on whose height and width are multiples of a number; refuse others."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: Tensor) -> Tensor:
        """Return the images."""
        height, width = x.shape[-2:]
        if height % self.number or width % self.number:
            raise SizeError(
                f"this network halves maps until one position stands for {self.number} pixels, so height and width "
                f"have to be multiples of {self.number}, got {height} x {width}; pad or crop the images, or use "
                "coattend.models.apply_in_windows, which pads."
            )
        return x

    def extra_repr(self) -> str:
        """Return the number."""
        return str(self.number)


def level_widths(width: int | tuple[int, ...], depth: int) -> tuple[int, ...]:
    """Return the channels per pose of every level: one number is that of the first, and doubles.

    >>> level_widths(8, 3)
    (8, 16, 32, 64)
    """
    if not 1 <= depth <= MOST_LEVELS:
        raise ValueError(f"depth must be a whole number from 1 to {MOST_LEVELS}, the number of halvings, got {depth}.")
    if isinstance(width, int):
        return tuple(width * 2**level for level in range(depth + 1))
    if len(width) != depth + 1:
        raise ValueError(f"width must be one number or {depth + 1}, one per level of depth={depth}, got {width!r}.")
    return tuple(width)
