"""The rotated-MNIST networks: Z2CNN, p4-CNN, DREN, DRENMaxPool and their co-attentive versions.

One seven-layer architecture, four configurations: [CW16]'s Z2CNN and p4-CNN, [LI18]'s r-Z2CNN x4 (DREN) and
r-Z2CNN-max x4 (DRENMaxPool) differ only in width, head, dropout and batch-norm constants.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import ClassVar, Literal, get_args

from torch import nn

from coattend.models.blocks import Blocks, named
from coattend.models.network import EquivariantNetwork
from coattend.nn import SpatialMaxPool2d

Head = Literal["decycle", "max", "mean", "sum"]
LARGEST_KERNEL = 11


class RotatedMnistNet(EquivariantNetwork):
    """Six 3x3 layers with one 2x2 max-pooling, then a 4x4 layer that leaves one position of a 28x28 image.

    ``head``: "decycle" projects onto the plane (the counts of [RH20] Table 1); "max", "mean" and "sum" convolve on the
    group and pool over it ([CW16]'s p4-CNN and DRENMaxPool take the maximum).
    ``kernel``: of the layers before the last one; larger kernels pad, so that maps keep the sizes of 3x3 kernels.
    ``group="D4>C4@3"`` has D4 in the first three layers, then C4, with as many planes.
    Differs from the paper: nothing known; it gives p4-CNN's count with the decycle head and its error with the max
    head.
    """

    group_changes_after: ClassVar[str] = "layers"

    def __init__(
        self,
        layers: Blocks,
        width: int = 10,
        num_classes: int = 10,
        in_channels: int = 1,
        head: Head = "decycle",
        dropout: float = 0.0,
        kernel: int = 3,
    ) -> None:
        if kernel % 2 == 0 or not 3 <= kernel <= LARGEST_KERNEL:
            raise ValueError(f"kernel must be 3, 5, 7, 9 or 11, so that layers pad to the sizes of 3, got {kernel}.")
        if head not in get_args(Head):
            raise ValueError(f"head must be one of {', '.join(get_args(Head))}, got {head!r}.")

        padding = (kernel - 3) // 2

        def hidden(number: int, dropout: float) -> OrderedDict[str, nn.Module | None]:
            here = layers.at(number)
            channels = here.channels(width)
            block = here.activate(here.conv(channels, channels, kernel, padding=padding), dropout)
            return OrderedDict([(f"restrict{number}", layers.restriction(number)), (f"layer{number}", block)])

        stage1 = named(
            layer1=layers.activate(layers.lift(in_channels, width, kernel, padding=padding), dropout), **hidden(2, 0.0)
        )
        stage2 = named(
            pool=SpatialMaxPool2d(2),
            **hidden(3, dropout),
            **hidden(4, dropout),
            **hidden(5, dropout),
            **hidden(6, dropout),
        )
        end = layers.at(7)
        channels, restrict = end.channels(width), layers.restriction(7)
        if head == "decycle":
            layer7: nn.Module = named(conv=end.project(channels, num_classes, 4))
            last = named(restrict7=restrict, layer7=layer7, pool=end.pool(None))
        else:
            pool = end.pool(head, over_space="max" if head == "max" else "mean")
            last = named(restrict7=restrict, layer7=end.conv(channels, num_classes, 4), pool=pool)
        super().__init__(
            end.group,
            [stage1, stage2],
            last,
            in_channels=in_channels,
            num_classes=num_classes,
            feature_channels=(layers.at(2).channels(width), layers.at(6).channels(width)),
            feature_reductions=(1, 2),
        )
