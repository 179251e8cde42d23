"""The pre-activation ResNet44 of [CW16] over any group, plain and co-attentive."""

from __future__ import annotations

from torch import Tensor, nn

from coattend.groups import FiniteGroup
from coattend.models.blocks import Attention, Downsample, Position, Style, stage_widths
from coattend.models.network import EquivariantNetwork, named, pooled
from coattend.nn.attention import Structure


class PreActivationBlock(nn.Module):
    """``conv2(relu(norm2(conv1(relu(norm1(x)))))) + shortcut(x)``, attention behind every convolution.

    The shortcut is the identity, or a 1x1 convolution of the raw input where channels or size change.
    """

    def __init__(self, style: Style, in_channels: int, out_channels: int, stride: int, attend_shortcut: bool) -> None:
        super().__init__()
        self.conv1 = style.conv(in_channels, out_channels, 3, stride=stride, padding=1)
        self.conv2 = style.conv(out_channels, out_channels, 3, padding=1)
        self.act1 = style.activation(in_channels, style.std(self.conv1.conv))
        self.act2 = style.activation(out_channels, style.std(self.conv2.conv))
        self.shortcut: nn.Module = nn.Identity()
        if in_channels != out_channels or stride != 1:
            self.shortcut = style.conv(in_channels, out_channels, 1, attend_shortcut, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        """Add what the two convolutions change."""
        return self.conv2(self.act2(self.conv1(self.act1(x)))) + self.shortcut(x)


class ResNet44(EquivariantNetwork):
    """6 * blocks + 2 layers in three stages of doubling width, then an invariant linear layer.

    With a position other than "conv", attention sits behind the norms or ReLUs that precede each convolution; the first
    convolution and the shortcuts, which have neither, keep theirs.
    Differs from the paper: attention by the group's own matrix instead of Eq. 11. Differs from [CW16]: its linear
    layer has weights of its own for every pose, so that its logits are not invariant; here a 1x1 group convolution
    and a mean over the group take its place, with the same number of weights.
    """

    def __init__(
        self,
        group: FiniteGroup | str = "p4m",
        width: int | tuple[int, int, int] = (11, 23, 45),
        blocks: int = 7,
        num_classes: int = 10,
        in_channels: int = 3,
        attention: Attention | None = None,
        structure: Structure = "group",
        position: Position = "conv",
        downsample: Downsample = "stride",
        attend_shortcuts: bool = True,
    ) -> None:
        style = Style(group, attention, structure, position, downsample, init="he")
        widths = stage_widths(width)
        stem = style.lift(in_channels, widths[0], 3, padding=1)
        stages: list[nn.Sequential] = []
        channels = widths[0]
        for number, channels_out in enumerate(widths):
            stride = 1 if number == 0 else 2
            first = PreActivationBlock(style, channels, channels_out, stride, attend_shortcuts)
            rest = [
                PreActivationBlock(style, channels_out, channels_out, 1, attend_shortcuts) for _ in range(blocks - 1)
            ]
            stages.append(nn.Sequential(first, *rest))
            channels = channels_out
        head = style.conv(channels, num_classes, 1, attend=False)
        stages[0] = named(stem=stem, blocks=stages[0])
        stages[-1] = named(blocks=stages[-1], act=style.activation(channels, style.std(head.conv)))
        super().__init__(
            style,
            stages,
            named(pool=SpatialMean(), linear=head, over_group=pooled(style, "mean")),
            in_channels=in_channels,
            num_classes=num_classes,
            feature_channels=widths,
            feature_reductions=(1, 2, 4),
        )


class SpatialMean(nn.Module):
    """Mean over positions, which stay as axes of length 1."""

    def forward(self, x: Tensor) -> Tensor:
        """Average."""
        return x.mean(dim=(-2, -1), keepdim=True)
