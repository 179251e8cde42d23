"""Residual networks of the size of ResNet-18, -34 and -50 over any group, for images of 224 x 224 pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor, nn

from coattend.models.blocks import Blocks, named
from coattend.models.network import EquivariantNetwork
from coattend.models.resnet import PostActivationBlock, stage_channels
from coattend.nn import SpatialMaxPool2d

STAGES = 4
USUAL_WIDTH = 64
MOST_BLOCKS = 200


class Bottleneck(nn.Module):
    """Add 1x1, 3x3 and 1x1 convolutions, the last to four times the width, to a shortcut; then a ReLU.

    ``relu(norm(conv3(relu(norm(conv2(relu(norm(conv1(x)))))))) + shortcut(x))``, attention after every convolution. The
    shortcut is the identity, or a 1x1 convolution with a norm where channels or size change.
    """

    EXPANSION: ClassVar[int] = 4

    def __init__(self, layers: Blocks, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = self.EXPANSION * width
        self.conv1 = layers.activate(layers.conv(in_channels, width, 1))
        self.conv2 = layers.activate(layers.conv(width, width, 3, stride=stride, padding=1, pool_first=True))
        self.conv3 = layers.normalize(layers.conv(width, out_channels, 1))
        self.shortcut: nn.Module = nn.Identity()
        if in_channels != out_channels or stride != 1:
            self.shortcut = layers.normalize(layers.conv(in_channels, out_channels, 1, stride=stride, pool_first=True))
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Add the residual to the shortcut."""
        return self.act(self.conv3(self.conv2(self.conv1(x))) + self.shortcut(x))


class CoatResNet(EquivariantNetwork):
    """A stem that quarters the image, four stages of residual blocks, and a linear layer on the maximum over the poses.

    - width: channels per pose of the first stage, doubled with each stage; or one number per stage
    - blocks: per stage, one number or four
    - bottleneck: blocks of 1x1, 3x3 and 1x1 convolutions instead of two 3x3 ones
    - downsample: with "pool", the default of these names, maps are halved by 2x2 means before the convolutions, and the
      stem has a 6x6 kernel: turns and mirrors are exact where 32 divides the size, as at 224. "stride" is the published
      form, exact at sizes such as 225.

    Over the trivial group, with ``width=64``, it is a plain residual network of the usual size.
    """

    group_changes_after: ClassVar[str] = "stages"

    def __init__(
        self,
        layers: Blocks,
        width: int | tuple[int, ...] = 8,
        num_classes: int = 1000,
        in_channels: int = 3,
        blocks: int | tuple[int, ...] = (2, 2, 2, 2),
        bottleneck: bool = False,
    ) -> None:
        depths = per_stage("blocks", blocks)
        if not all(1 <= depth <= MOST_BLOCKS for depth in depths):
            raise ValueError(f"blocks must be from 1 to {MOST_BLOCKS} per stage, got {blocks!r}.")
        widths, expansion = doubled(width), Bottleneck.EXPANSION if bottleneck else 1
        stages: list[nn.Module] = []
        before = widths[0]
        for number, (stage_width, depth) in enumerate(zip(widths, depths, strict=True), start=1):
            here = layers.at(number)
            in_width, inside, outside = (here.channels(n) for n in (before, stage_width, expansion * stage_width))
            block = Bottleneck if bottleneck else _basic_block
            first = block(here, in_width, inside, 1 if number == 1 else 2)
            others = nn.Sequential(first, *(block(here, outside, inside, 1) for _ in range(depth - 1)))
            stem = _stem(layers, in_channels, widths[0]) if number == 1 else None
            stages.append(named(stem=stem, restrict=layers.restriction(number), blocks=others))
            before = expansion * stage_width
        end = layers.at(STAGES)
        channels = stage_channels(layers, [expansion * n for n in widths])
        super().__init__(
            end.group,
            stages,
            named(pool=end.pool("max"), linear=nn.Linear(channels[-1], num_classes)),
            in_channels=in_channels,
            num_classes=num_classes,
            feature_channels=channels,
            feature_reductions=(4, 8, 16, 32),
        )

    @staticmethod
    def usual_widths(options: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the channels of the plain network."""
        return doubled(options.get("width", USUAL_WIDTH))


def _basic_block(layers: Blocks, in_channels: int, width: int, stride: int) -> nn.Module:
    return PostActivationBlock(layers, in_channels, width, stride, shortcut_kernel=1, pool_first=True)


def _stem(layers: Blocks, in_channels: int, width: int) -> nn.Sequential:
    """Return the layers that quarter the image."""
    if layers.downsample == "stride":
        lift = layers.lift(in_channels, width, 7, stride=2, padding=3)
        return named(conv=layers.activate(lift), pool=SpatialMaxPool2d(3, 2, 1))
    # An even kernel covers even sizes with stride 2, so that it need not be replaced by pooling, four times as costly.
    lift = replace(layers, downsample="stride").lift(in_channels, width, 6, stride=2, padding=2)
    return named(conv=layers.activate(lift), pool=SpatialMaxPool2d(2))


def doubled(width: int | Sequence[int]) -> tuple[int, ...]:
    """Return the channels per pose of four stages: one number is that of the first, and doubles.

    >>> doubled(8)
    (8, 16, 32, 64)
    """
    return tuple(width * 2**n for n in range(STAGES)) if isinstance(width, int) else per_stage("width", width)


def per_stage(name: str, value: int | Sequence[int]) -> tuple[int, ...]:
    """Return one number per stage."""
    numbers = (value,) * STAGES if isinstance(value, int) else tuple(value)
    if len(numbers) != STAGES or not all(isinstance(n, int) and not isinstance(n, bool) for n in numbers):
        raise ValueError(f"{name} must be one number or {STAGES}, one per stage, got {value!r}.")
    return numbers
