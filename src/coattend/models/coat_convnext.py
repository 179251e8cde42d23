"""Convolutional networks in the shape of ConvNeXt (Liu et al., 2022) over any group, for images of 224 x 224 pixels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from coattend.models.blocks import Blocks, named
from coattend.models.coat_resnet import STAGES, doubled, per_stage
from coattend.models.network import EquivariantNetwork
from coattend.models.resnet import stage_channels
from coattend.nn import GroupLayerNorm2d

USUAL_WIDTH = 96
EXPANSION = 4
LAYER_SCALE = 1e-6


class ConvNeXtBlock(nn.Module):
    """``x + scale * conv2(gelu(conv1(norm(depthwise(x)))))``: 7x7 in each channel and pose, then two 1x1 convolutions.

    The 1x1 convolutions combine channels and poses; attention follows the second.
    """

    def __init__(self, layers: Blocks, channels: int, layer_scale: float) -> None:
        super().__init__()
        self.depthwise = layers.depthwise(channels, 7)
        self.norm = GroupLayerNorm2d(channels)
        self.conv1 = layers.conv(channels, EXPANSION * channels, 1, attend=False)
        self.act = nn.GELU()
        self.conv2 = layers.conv(EXPANSION * channels, channels, 1)
        self.scale = nn.Parameter(torch.full((channels, 1, 1, 1), layer_scale))

    def forward(self, x: Tensor) -> Tensor:
        """Add the residual."""
        return x + self.scale * self.conv2(self.act(self.conv1(self.norm(self.depthwise(x)))))


class CoatConvNeXt(EquivariantNetwork):
    """4x4 patches, four stages of ConvNeXt blocks with 2x2 patches between them, and an invariant linear layer.

    - width: channels per pose of the first stage, doubled with each stage; or one number per stage
    - blocks: per stage, one number or four
    - layer_scale: of the residuals of new networks

    Patches do not overlap, so that turns and mirrors are exact where 32 divides the size, as at 224. The options of
    norms do not apply: there are layer norms only. Over the trivial group, with ``width=96``, it is a plain ConvNeXt.
    """

    group_changes_after: ClassVar[str] = "stages"

    def __init__(
        self,
        layers: Blocks,
        width: int | tuple[int, ...] = 12,
        num_classes: int = 1000,
        in_channels: int = 3,
        blocks: int | tuple[int, ...] = (3, 3, 9, 3),
        layer_scale: float = LAYER_SCALE,
    ) -> None:
        depths = per_stage("blocks", blocks)
        if min(depths) < 1:
            raise ValueError(f"blocks must be at least 1 per stage, got {blocks!r}.")
        widths = doubled(width)
        stages: list[nn.Module] = []
        before = widths[0]
        for number, (stage_width, depth) in enumerate(zip(widths, depths, strict=True), start=1):
            here = layers.at(number)
            in_width, channels = here.channels(before), here.channels(stage_width)
            parts: dict[str, nn.Module | None] = {"restrict": layers.restriction(number)}
            if number == 1:
                parts["patches"] = layers.lift(in_channels, channels, 4, stride=4)
                parts["norm"] = GroupLayerNorm2d(channels)
            else:
                parts["norm"] = GroupLayerNorm2d(in_width)
                parts["patches"] = here.conv(in_width, channels, 2, stride=2, attend=False)
            parts["blocks"] = nn.Sequential(*(ConvNeXtBlock(here, channels, layer_scale) for _ in range(depth)))
            stages.append(named(**parts))
            before = stage_width
        end, channels_of = layers.at(STAGES), stage_channels(layers, widths)
        head = named(
            pool=end.pool("max"), norm=nn.LayerNorm(channels_of[-1]), linear=nn.Linear(channels_of[-1], num_classes)
        )
        super().__init__(
            end.group,
            stages,
            head,
            in_channels=in_channels,
            num_classes=num_classes,
            feature_channels=channels_of,
            feature_reductions=(4, 8, 16, 32),
        )

    @staticmethod
    def usual_widths(options: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the channels of the plain network."""
        return doubled(options.get("width", USUAL_WIDTH))
