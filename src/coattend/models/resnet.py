"""Residual networks over any group, plain and co-attentive: [CW16]'s ResNet44 and [LI18]'s ResNet20."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from torch import Tensor, nn

from coattend.models.blocks import Blocks, named
from coattend.models.network import EquivariantNetwork

Widths = tuple[int, int, int]


class PreActivationBlock(nn.Module):
    """``conv2(relu(norm2(conv1(relu(norm1(x)))))) + shortcut(x)``, attention after every convolution.

    The shortcut is the identity, or a 1x1 convolution of the raw input where channels or size change.
    """

    def __init__(self, layers: Blocks, in_channels: int, out_channels: int, stride: int, attend_shortcut: bool) -> None:
        super().__init__()
        conv1 = layers.conv(in_channels, out_channels, 3, stride=stride, padding=1)
        conv2 = layers.conv(out_channels, out_channels, 3, padding=1)
        self.conv1, self.conv2 = conv1, conv2
        self.act1 = layers.preactivation(conv1)
        self.act2 = layers.preactivation(conv2)
        self.shortcut: nn.Module = nn.Identity()
        if in_channels != out_channels or stride != 1:
            self.shortcut = layers.conv(in_channels, out_channels, 1, stride=stride, attend=attend_shortcut)

    def forward(self, x: Tensor) -> Tensor:
        """Add the residual to the shortcut."""
        return self.conv2(self.act2(self.conv1(self.act1(x)))) + self.shortcut(x)


class PostActivationBlock(nn.Module):
    """``relu(norm(conv2(relu(norm(conv1(x))))) + shortcut(x))``, attention after every convolution.

    The shortcut is the identity, or a 5x5 convolution with a norm where channels or size change, 1x1 in other networks.
    ``pool_first``: see :meth:`Blocks.conv`.
    """

    def __init__(
        self,
        layers: Blocks,
        in_channels: int,
        out_channels: int,
        stride: int,
        shortcut_kernel: int = 5,
        pool_first: bool = False,
    ) -> None:
        super().__init__()
        conv1 = layers.conv(in_channels, out_channels, 3, stride=stride, padding=1, pool_first=pool_first)
        self.conv1 = layers.activate(conv1)
        self.conv2 = layers.normalize(layers.conv(out_channels, out_channels, 3, padding=1))
        self.shortcut: nn.Module = nn.Identity()
        if in_channels != out_channels or stride != 1:
            kernel = shortcut_kernel
            shortcut = layers.conv(
                in_channels, out_channels, kernel, stride=stride, padding=kernel // 2, pool_first=pool_first
            )
            self.shortcut = layers.normalize(shortcut)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Add the residual to the shortcut."""
        return self.act(self.conv2(self.conv1(x)) + self.shortcut(x))


class ResNet44(EquivariantNetwork):
    """The pre-activation network: 6 * blocks + 2 layers in three stages, then an invariant linear layer.

    With a position other than "conv", attention follows the norms or ReLUs that precede each convolution; the first
    convolution and the shortcuts, which have neither, are without attention.
    Differs from the paper: attention by the group's own matrix instead of Eq. 11. Differs from [CW16]: its linear
    layer has separate weights for every pose, so that its logits are not invariant; a 1x1 group convolution and a mean
    over the group replace it here, with the same number of weights.
    """

    group_changes_after: ClassVar[str] = "stages"

    def __init__(
        self,
        layers: Blocks,
        width: int | Widths = (11, 23, 45),
        blocks: int = 7,
        num_classes: int = 10,
        in_channels: int = 3,
        attend_shortcuts: bool = True,
    ) -> None:
        def block(layers: Blocks, in_channels: int, out_channels: int, stride: int) -> nn.Module:
            return PreActivationBlock(layers, in_channels, out_channels, stride, attend_shortcuts)

        widths, end = stage_channels(layers, stage_widths(width)), layers.at(3)
        stem = layers.lift(in_channels, widths[0], 3, padding=1)
        first, second, third = _stages(layers, stage_widths(width), blocks, block)
        linear = end.conv(widths[-1], num_classes, 1, attend=False)
        super().__init__(
            end.group,
            [named(stem=stem, blocks=first), second, named(blocks=third, act=end.preactivation(linear))],
            named(pool=SpatialMean(), linear=linear, over_group=end.pool("mean")),
            in_channels=in_channels,
            num_classes=num_classes,
            feature_channels=widths,
            feature_reductions=(1, 2, 4),
        )


class ResNet20(EquivariantNetwork):
    """The post-activation network of [LI18]'s TensorFlow code: three stages, a 1x1 projection, a mean over positions.

    Differs from the paper: the paper does not describe the fully equivariant network; its count implies 5x5 shortcuts
    and a decycle head.
    """

    group_changes_after: ClassVar[str] = "stages"

    def __init__(
        self,
        layers: Blocks,
        width: int | Widths = 8,
        blocks: int = 3,
        num_classes: int = 10,
        in_channels: int = 3,
    ) -> None:
        widths, end = stage_channels(layers, stage_widths(width)), layers.at(3)
        first, second, third = _stages(layers, stage_widths(width), blocks, PostActivationBlock)
        stem = layers.activate(layers.lift(in_channels, widths[0], 3, padding=1))
        super().__init__(
            end.group,
            [named(stem=stem, blocks=first), second, third],
            named(project=end.project(widths[-1], num_classes, 1), pool=end.pool(None)),
            in_channels=in_channels,
            num_classes=num_classes,
            feature_channels=widths,
            feature_reductions=(1, 2, 4),
        )


class SpatialMean(nn.Module):
    """Average over positions, which stay as axes of length 1."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., 1, 1)."""
        return x.mean(dim=(-2, -1), keepdim=True)


def stage_widths(width: int | Widths) -> Widths:
    """Return the channels per pose of three stages: one number is that of the first, and doubles.

    >>> stage_widths(8)
    (8, 16, 32)
    """
    if isinstance(width, int):
        return width, 2 * width, 4 * width
    if len(width) != 3:
        raise ValueError(f"width must be one number or three, one per stage, got {width!r}.")
    return width


def stage_channels(layers: Blocks, widths: Sequence[int]) -> tuple[int, ...]:
    """Return the channels per pose of every stage, given those of the first group."""
    return tuple(layers.at(stage).channels(width) for stage, width in enumerate(widths, start=1))


def _stages(
    layers: Blocks, widths: Widths, blocks: int, block: Callable[[Blocks, int, int, int], nn.Module]
) -> list[nn.Sequential]:
    """Return the stages, each of which but the first halves the maps in its first block."""
    stages = []
    before = widths[0]
    for stage, width in enumerate(widths, start=1):
        here = layers.at(stage)
        in_channels, channels = here.channels(before), here.channels(width)
        first = block(here, in_channels, channels, 1 if stage == 1 else 2)
        others = (block(here, channels, channels, 1) for _ in range(blocks - 1))
        restriction = layers.restriction(stage)
        if restriction is None:
            stages.append(nn.Sequential(first, *others))
        else:
            stages.append(named(restrict=restriction, **{f"{i}": b for i, b in enumerate([first, *others])}))
        before = width
    return stages
