"""A network of group convolutions with generated filters, in the shape of E4-Net (He et al., 2021)."""

from __future__ import annotations

from torch import nn

from coattend.models.blocks import Blocks, ConvBlock, named
from coattend.models.network import EquivariantNetwork
from coattend.nn import SpatialMaxPool2d


class E4CNN(EquivariantNetwork):
    """A 3x3 lifting layer, six layers with generated filters, two 2x2 max-poolings, and the maximum over all poses.

    ``slices`` blocks of channels share a filter, which ``hidden`` channels generate (None: as many as the width).
    ``generated=False`` is the static twin, the same layers with constant filters.
    Differs from E4-Net: norms share their parameters over the poses, without which it is not equivariant; dropout,
    0.2 there, is off.
    """

    def __init__(
        self,
        layers: Blocks,
        width: int = 16,
        num_classes: int = 10,
        in_channels: int = 1,
        kernel: int = 5,
        slices: int = 2,
        hidden: int | None = None,
        generated: bool = True,
        dropout: float = 0.0,
    ) -> None:
        def layer(dropout: float = dropout) -> ConvBlock:
            conv = layers.dynamic(width, width, kernel, slices=slices, hidden=hidden, generated=generated)
            return layers.activate(conv, dropout)

        stage1 = named(
            layer1=layers.activate(layers.lift(in_channels, width, 3, padding=1, bias=False)), layer2=layer(0.0)
        )
        stage2 = named(pool=SpatialMaxPool2d(2), layer3=layer(), layer4=layer())
        stage3 = named(pool=SpatialMaxPool2d(2), layer5=layer(), layer6=layer(), layer7=layer())
        super().__init__(
            layers.group,
            [stage1, stage2, stage3],
            named(pool=layers.pool("max", over_space="max"), linear=nn.Linear(width, num_classes)),
            in_channels=in_channels,
            num_classes=num_classes,
            feature_channels=(width, width, width),
            feature_reductions=(1, 2, 4),
        )
