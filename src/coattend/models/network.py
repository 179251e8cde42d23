"""The form of every network here: stages that keep the group axis, then a head that removes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from coattend.groups import FiniteGroup, get_group
from coattend.models.blocks import ConvBlock
from coattend.nn import GroupConvTranspose2d


@dataclass(frozen=True)
class ModelConfig:
    """What builds a network: the name under which it is registered, and its options."""

    model: str
    options: Mapping[str, Any]


class EquivariantNetwork(nn.Module):
    """Image -> stages -> map -> head -> logits.

    ``feature_channels`` and ``feature_reductions`` describe what each stage returns: channels per pose, and how many
    pixels of the image one position stands for.
    """

    config: ModelConfig | None = None  # set by create_model, written by save_model
    image_shape: tuple[int, int, int] | None = None  # of the images it was trained on, if its file says so

    def __init__(
        self,
        group: FiniteGroup | str,
        stages: Sequence[nn.Module],
        head: nn.Module,
        *,
        in_channels: int,
        num_classes: int,
        feature_channels: Sequence[int],
        feature_reductions: Sequence[int],
    ) -> None:
        super().__init__()
        self.group = get_group(group)
        self.in_channels = in_channels
        self.num_classes = num_classes
        self.feature_channels = tuple(feature_channels)
        self.feature_reductions = tuple(feature_reductions)
        self.stages = nn.Sequential(*stages)
        self.head = head

    @property
    def acting_group(self) -> FiniteGroup:
        """The group that moves images where equivariance is measured: the network's own, p4 for a plain network."""
        return self.group if self.group.order > 1 else get_group("p4")

    @property
    def stride_remedy(self) -> str | None:
        """The option that replaces strided convolutions by pooling; None for a network without them."""
        convolutions = [m.conv for m in self.modules() if isinstance(m, ConvBlock)]
        strided = any(c.stride > 1 for c in convolutions if not isinstance(c, GroupConvTranspose2d))
        return "downsample=pool" if strided else None

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the map (batch, channels, group, height, width) after the last stage."""
        return self.stages(x)

    def forward_head(self, features: Tensor) -> Tensor:
        """Return the logits (batch, classes) of a map."""
        return self.head(features)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (batch, classes)."""
        return self.forward_head(self.forward_features(x))


class FeatureBackbone(nn.Module):
    """A network without its head, which returns the maps (batch, channels, group, height, width) of every stage."""

    def __init__(self, network: EquivariantNetwork) -> None:
        super().__init__()
        self.group = network.group
        self.in_channels = network.in_channels
        self.feature_channels = network.feature_channels
        self.feature_reductions = network.feature_reductions
        self.stages = network.stages

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return one map per stage, the finest first."""
        features = []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        return features
