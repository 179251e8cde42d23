"""All-CNN-C over any group ([CW16]'s p4- and p4m-All-CNN), plain and co-attentive."""

from __future__ import annotations

from torch import nn

from coattend.models.blocks import Blocks, ConvBlock, named
from coattend.models.network import EquivariantNetwork


class AllCNN(EquivariantNetwork):
    """Nine convolutions, two of them with stride 2, each followed by norm and ReLU, including the last; then a mean.

    Differs from the paper: attention by the group's own matrix instead of Eq. 11 (``structure="paper"`` for that).
    """

    def __init__(
        self,
        layers: Blocks,
        width: int = 32,
        num_classes: int = 10,
        in_channels: int = 3,
        input_dropout: float = 0.2,
        dropout: float = 0.5,
    ) -> None:
        def layer(
            in_channels: int, out_channels: int, kernel_size: int = 3, stride: int = 1, dropout: float = 0.0
        ) -> ConvBlock:
            conv = layers.conv(in_channels, out_channels, kernel_size, stride=stride, padding=kernel_size // 2)
            return layers.activate(conv, dropout)

        stage1 = named(
            dropout=nn.Dropout(input_dropout),
            layer1=layers.activate(layers.lift(in_channels, width, 3, padding=1)),
            layer2=layer(width, width),
        )
        stage2 = named(
            layer3=layer(width, width, stride=2, dropout=dropout),
            layer4=layer(width, 2 * width),
            layer5=layer(2 * width, 2 * width),
        )
        stage3 = named(
            layer6=layer(2 * width, 2 * width, stride=2, dropout=dropout),
            layer7=layer(2 * width, 2 * width),
            layer8=layer(2 * width, 2 * width, kernel_size=1),
        )
        super().__init__(
            layers.group,
            [stage1, stage2, stage3],
            named(layer9=layer(2 * width, num_classes, kernel_size=1), pool=layers.pool("mean")),
            in_channels=in_channels,
            num_classes=num_classes,
            feature_channels=(width, 2 * width, 2 * width),
            feature_reductions=(1, 2, 4),
        )
