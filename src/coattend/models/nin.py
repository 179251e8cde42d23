"""Network in network over any group, equivariant up to and including the classifier ([LI18]'s r-NIN x4)."""

from __future__ import annotations

from torch import nn

from coattend.models.blocks import Blocks, ConvBlock, named
from coattend.models.network import EquivariantNetwork
from coattend.nn import GroupDropout2d, SpatialAvgPool2d, SpatialMaxPool2d


class NIN(EquivariantNetwork):
    """Three convolutions, 5x5, 5x5 and 3x3, each followed by two 1x1 ones; ReLU after every layer, including the last.

    As published it has no norms (``norm=False``).
    Differs from the paper: pooling is 2x2 as in [LI18]'s files for this net; 3x3 windows with stride 2 would not be
    exact.
    """

    def __init__(
        self,
        layers: Blocks,
        width: int = 96,
        num_classes: int = 10,
        in_channels: int = 3,
        dropout: float = 0.5,
    ) -> None:
        narrow, half = round(width * 5 / 6), width // 2

        def layer(in_channels: int, out_channels: int, kernel_size: int) -> ConvBlock:
            return layers.activate(layers.conv(in_channels, out_channels, kernel_size, padding=kernel_size // 2))

        stage1 = named(
            conv1=layers.activate(layers.lift(in_channels, width, 5, padding=2)),
            cccp1=layer(width, narrow, 1),
            cccp2=layer(narrow, half, 1),
        )
        stage2 = named(
            pool=SpatialMaxPool2d(2),
            dropout=GroupDropout2d(dropout, elementwise=True),
            conv2=layer(half, width, 5),
            cccp3=layer(width, width, 1),
            cccp4=layer(width, width, 1),
        )
        stage3 = named(
            pool=SpatialAvgPool2d(2),
            dropout=GroupDropout2d(dropout, elementwise=True),
            conv3=layer(width, width, 3),
            cccp5=layer(width, width, 1),
        )
        last = named(conv=layers.project(width, num_classes, 1), act=nn.ReLU())
        super().__init__(
            layers.group,
            [stage1, stage2, stage3],
            named(cccp6=last, pool=layers.pool(None)),
            in_channels=in_channels,
            num_classes=num_classes,
            feature_channels=(half, width, width),
            feature_reductions=(1, 2, 4),
        )
