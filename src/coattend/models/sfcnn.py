"""A wide network of large filters, in the shape of SFCNNs (Weiler et al., 2018)."""

from __future__ import annotations

from torch import nn

from coattend.models.blocks import Blocks, named
from coattend.models.network import EquivariantNetwork
from coattend.nn import SpatialMaxPool2d

HALF_WIDTHS = (2, 3, 4, 5, 6, 9)  # of the six layers, in half the width of the first


class SFCNN(EquivariantNetwork):
    """Six padded layers that grow in width, two 2x2 max-poolings, the maximum over all poses, and two dense layers.

    ``width``: of the first layer; the others have 1.5, 2, 2.5, 3 and 4.5 times as many channels. ``kernel``: of all
    layers but the first, which has 7x7 filters. ``hidden``: numbers between the dense layers.
    Differs from SFCNNs: 5x5 filters instead of 7x7, and the maximum over positions instead of the mean.
    """

    def __init__(
        self,
        layers: Blocks,
        width: int = 8,
        num_classes: int = 10,
        in_channels: int = 1,
        kernel: int = 5,
        hidden: int = 64,
        dropout: float = 0.0,
    ) -> None:
        if kernel % 2 == 0:
            raise ValueError(f"kernel must be odd, so that layers keep the size of their maps, got {kernel}.")
        channels = [width * halves // 2 for halves in HALF_WIDTHS]

        def hidden_layer(number: int) -> nn.Module:
            conv = layers.conv(channels[number - 2], channels[number - 1], kernel, padding=kernel // 2)
            return layers.activate(conv, dropout)

        layer1 = layers.activate(layers.lift(in_channels, channels[0], 7, padding=3))
        stage1 = named(layer1=layer1, layer2=hidden_layer(2))
        stage2 = named(pool=SpatialMaxPool2d(2), layer3=hidden_layer(3), layer4=hidden_layer(4))
        stage3 = named(pool=SpatialMaxPool2d(2), layer5=hidden_layer(5), layer6=hidden_layer(6))
        head = named(
            pool=layers.pool("max", over_space="max"),
            dense=nn.Linear(channels[-1], hidden, bias=False),
            norm=nn.BatchNorm1d(hidden),
            act=nn.ReLU(),
            linear=nn.Linear(hidden, num_classes),
        )
        super().__init__(
            layers.group,
            [stage1, stage2, stage3],
            head,
            in_channels=in_channels,
            num_classes=num_classes,
            feature_channels=channels[1::2],
            feature_reductions=(1, 2, 4),
        )
