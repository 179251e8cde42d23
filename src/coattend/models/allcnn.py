"""All-CNN-C over any group ([CW16]'s p4- and p4m-All-CNN), plain and co-attentive."""

from __future__ import annotations

from torch import nn

from coattend.groups import FiniteGroup
from coattend.models.blocks import Attention, Downsample, Position, Style
from coattend.models.network import EquivariantNetwork, named, pooled
from coattend.nn.attention import Structure


class AllCNN(EquivariantNetwork):
    """Nine convolutions, two of them with stride 2, each with norm and ReLU, the last one too; then one mean.

    Differs from the paper: attention by the group's own matrix instead of Eq. 11 (``structure="paper"`` for that).
    """

    def __init__(
        self,
        group: FiniteGroup | str = "p4m",
        width: int = 32,
        num_classes: int = 10,
        in_channels: int = 3,
        attention: Attention | None = None,
        structure: Structure = "group",
        position: Position = "conv",
        downsample: Downsample = "stride",
        init_std: float = 0.035,
        input_dropout: float = 0.2,
        dropout: float = 0.5,
    ) -> None:
        style = Style(group, attention, structure, position, downsample, init_std)

        def layer(
            in_channels: int, out_channels: int, kernel_size: int = 3, stride: int = 1, drop: float = 0.0
        ) -> nn.Sequential:
            conv = style.conv(in_channels, out_channels, kernel_size, stride=stride, padding=kernel_size // 2)
            return style.activated(conv, drop)

        stage1 = named(
            dropout=nn.Dropout(input_dropout),
            layer1=style.activated(style.lift(in_channels, width, 3, padding=1)),
            layer2=layer(width, width),
        )
        stage2 = named(
            layer3=layer(width, width, stride=2, drop=dropout),
            layer4=layer(width, 2 * width),
            layer5=layer(2 * width, 2 * width),
        )
        stage3 = named(
            layer6=layer(2 * width, 2 * width, stride=2, drop=dropout),
            layer7=layer(2 * width, 2 * width),
            layer8=layer(2 * width, 2 * width, kernel_size=1),
        )
        super().__init__(
            style,
            [stage1, stage2, stage3],
            named(layer9=layer(2 * width, num_classes, kernel_size=1), pool=pooled(style, "mean")),
            in_channels=in_channels,
            num_classes=num_classes,
            feature_channels=(width, 2 * width, 2 * width),
            feature_reductions=(1, 2, 4),
        )
