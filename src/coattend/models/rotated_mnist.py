"""The rotated-MNIST networks: Z2CNN, p4-CNN, DREN, DRENMaxPool and their co-attentive versions.

One architecture of seven layers in four clothes: [CW16]'s Z2CNN and p4-CNN, [LI18]'s r-Z2CNN x4 (DREN) and
r-Z2CNN-max x4 (DRENMaxPool) differ in width, head, dropout and batch-norm constants only.
"""

from __future__ import annotations

from typing import Literal, get_args

from torch import nn

from coattend.groups import FiniteGroup
from coattend.models.blocks import Attention, Position, Style
from coattend.models.network import EquivariantNetwork, named, pooled
from coattend.nn import SpatialMaxPool2d
from coattend.nn.attention import Structure

Head = Literal["decycle", "max", "mean", "sum"]


class RotatedMnistNet(EquivariantNetwork):
    """Six 3x3 layers with one 2x2 max-pooling, then a 4x4 layer that leaves one position of a 28x28 image.

    ``head``: "decycle" projects onto the plane (the counts of [RH20] Table 1); "max", "mean" and "sum" convolve on the
    group and pool over it ([CW16]'s p4-CNN and DRENMaxPool take the maximum). ``diagonal``: of the attention matrices
    at the start of training.
    Differs from the paper: nothing known; it gives p4-CNN's count with the decycle head and its error with the max
    head.
    """

    def __init__(
        self,
        group: FiniteGroup | str = "p4",
        width: int = 10,
        num_classes: int = 10,
        in_channels: int = 1,
        attention: Attention | None = None,
        structure: Structure = "group",
        position: Position = "conv",
        diagonal: float = 1.0,
        head: Head = "decycle",
        dropout: float = 0.0,
        norm_eps: float = 2e-5,
        norm_momentum: float = 0.1,
    ) -> None:
        if head not in get_args(Head):
            raise ValueError(f"head must be one of {', '.join(get_args(Head))}, got {head!r}.")
        style = Style(
            group, attention, structure, position, norm_eps=norm_eps, norm_momentum=norm_momentum, diagonal=diagonal
        )

        def hidden(drop: float) -> nn.Sequential:
            return style.activated(style.conv(width, width, 3), drop)

        stage1 = named(
            layer1=style.activated(style.lift(in_channels, width, 3), dropout),
            layer2=hidden(0.0),
        )
        stage2 = named(
            pool=SpatialMaxPool2d(2),
            layer3=hidden(dropout),
            layer4=hidden(dropout),
            layer5=hidden(dropout),
            layer6=hidden(dropout),
        )
        if head == "decycle":
            last = named(layer7=named(conv=style.project(width, num_classes, 4)), pool=pooled(style, None))
        else:
            space = "max" if head == "max" else "mean"
            last = named(layer7=style.conv(width, num_classes, 4), pool=pooled(style, head, space))
        super().__init__(
            style,
            [stage1, stage2],
            last,
            in_channels=in_channels,
            num_classes=num_classes,
            feature_channels=(width, width),
            feature_reductions=(1, 2),
        )
