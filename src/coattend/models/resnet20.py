"""The post-activation ResNet20 of [LI18]'s TensorFlow code over any group, equivariant up to the classifier."""

from __future__ import annotations

from torch import Tensor, nn

from coattend.groups import FiniteGroup
from coattend.models.blocks import Attention, Downsample, Position, Style, stage_widths
from coattend.models.network import EquivariantNetwork, named, pooled
from coattend.nn.attention import Structure


class PostActivationBlock(nn.Module):
    """``relu(norm(conv2(relu(norm(conv1(x))))) + shortcut(x))``, attention behind every convolution.

    The shortcut is the identity, or a 5x5 convolution with a norm where channels or size change.
    """

    def __init__(self, style: Style, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = style.activated(style.conv(in_channels, out_channels, 3, stride=stride, padding=1))
        self.conv2 = style.normalised(style.conv(out_channels, out_channels, 3, padding=1))
        self.shortcut: nn.Module = nn.Identity()
        if in_channels != out_channels or stride != 1:
            self.shortcut = style.normalised(style.conv(in_channels, out_channels, 5, stride=stride, padding=2))
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Add what the two convolutions change."""
        return self.act(self.conv2(self.conv1(x)) + self.shortcut(x))


class ResNet20(EquivariantNetwork):
    """Three stages of three blocks in doubling width, a 1x1 projection, then a mean over positions.

    Differs from the paper: it does not describe the fully equivariant net; its count fixes 5x5 shortcuts and a
    decycle head.
    """

    def __init__(
        self,
        group: FiniteGroup | str = "C4 clockwise",
        width: int | tuple[int, int, int] = 8,
        blocks: int = 3,
        num_classes: int = 10,
        in_channels: int = 3,
        attention: Attention | None = None,
        structure: Structure = "group",
        position: Position = "conv",
        downsample: Downsample = "stride",
    ) -> None:
        style = Style(group, attention, structure, position, downsample, norm_eps=1e-3, norm_momentum=0.02)
        widths = stage_widths(width)
        stages: list[nn.Module] = []
        channels = widths[0]
        for number, channels_out in enumerate(widths):
            first = PostActivationBlock(style, channels, channels_out, stride=1 if number == 0 else 2)
            rest = [PostActivationBlock(style, channels_out, channels_out, 1) for _ in range(blocks - 1)]
            stages.append(nn.Sequential(first, *rest))
            channels = channels_out
        stages[0] = named(stem=style.activated(style.lift(in_channels, widths[0], 3, padding=1)), blocks=stages[0])
        super().__init__(
            style,
            stages,
            named(project=style.project(channels, num_classes, 1), pool=pooled(style, None)),
            in_channels=in_channels,
            num_classes=num_classes,
            feature_channels=widths,
            feature_reductions=(1, 2, 4),
        )
