"""A small transformer on a group after a convolutional stem, for images of 64 x 64 pixels and more."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from coattend.models.blocks import Blocks, named
from coattend.models.network import EquivariantNetwork
from coattend.nn import GroupLayerNorm2d, GroupTransformerBlock, SpatialMaxPool2d


class CoatViT(EquivariantNetwork):
    """A stem of 3x3 layers and 2x2 poolings, ``depth`` transformer blocks, and the mean over positions and poses.

    - patch: how many pixels of the image one position stands for along an axis, a power of 2; each halving is a
      pooling of the stem
    - token_heads: heads of the blocks per pose; mlp, window: see :class:`GroupTransformerBlock`
    - layer_scale: see there; 0 for none

    The options of attention (``heads`` is one of them), norm and filters are those of the stem.
    """

    def __init__(
        self,
        layers: Blocks,
        width: int = 24,
        num_classes: int = 10,
        in_channels: int = 3,
        depth: int = 6,
        token_heads: int = 4,
        mlp: int = 4,
        patch: int = 4,
        window: int | None = None,
        layer_scale: float = 0.0,
    ) -> None:
        if patch < 2 or patch & (patch - 1):
            raise ValueError(f"patch must be a power of 2, such as 4, so that the stem halves the image, got {patch}.")
        stem: OrderedDict[str, nn.Module] = OrderedDict(
            layer1=layers.activate(layers.lift(in_channels, width, 3, padding=1))
        )
        for number in range(2, patch.bit_length() + 1):
            stem[f"pool{number}"] = SpatialMaxPool2d(2)
            stem[f"layer{number}"] = layers.activate(layers.conv(width, width, 3, padding=1))
        blocks = OrderedDict(
            (
                f"block{number}",
                GroupTransformerBlock(width, layers.group, token_heads, window, mlp, layer_scale or None),
            )
            for number in range(1, depth + 1)
        )
        super().__init__(
            layers.group,
            [named(**stem), named(**blocks, norm=GroupLayerNorm2d(width))],
            named(pool=layers.pool("mean"), linear=nn.Linear(width, num_classes)),
            in_channels=in_channels,
            num_classes=num_classes,
            feature_channels=(width, width),
            feature_reductions=(patch, patch),
        )
