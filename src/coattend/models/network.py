"""The shape of every network here: stages that keep the group axis, then a head that removes it."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from coattend.groups import FiniteGroup
from coattend.models.blocks import Style
from coattend.nn import GroupPool


class EquivariantNetwork(nn.Module):
    """Image -> stages -> map -> head -> logits.

    ``feature_channels`` and ``feature_reductions`` describe what each stage returns: channels per pose, and how many
    pixels of the image one position stands for.
    """

    config: dict[str, Any] | None = None  # how create_model built it; what save_model writes
    image_shape: tuple[int, int, int] | None = None  # of the images it was trained on, if its file says so

    def __init__(
        self,
        style: Style,
        stages: Sequence[nn.Module],
        head: nn.Module,
        *,
        in_channels: int,
        num_classes: int,
        feature_channels: Sequence[int],
        feature_reductions: Sequence[int],
    ) -> None:
        super().__init__()
        assert isinstance(style.group, FiniteGroup)
        self.group = style.group
        self.in_channels = in_channels
        self.num_classes = num_classes
        self.feature_channels = tuple(feature_channels)
        self.feature_reductions = tuple(feature_reductions)
        self.stages = nn.Sequential(*stages)
        self.head = head

    @property
    def stride_remedy(self) -> str | None:
        """The option that replaces strided convolutions by pooling, if the network has it and was built without it."""
        options = {} if self.config is None else self.config["options"]
        strided = options.get("downsample", "stride") == "stride"
        return "downsample=pool" if strided and "downsample" in inspect.signature(type(self)).parameters else None

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the map (batch, channels, group, height, width) after the last stage."""
        return self.stages(x)

    def forward_head(self, features: Tensor) -> Tensor:
        """Return the logits (batch, classes) of a map."""
        return self.head(features)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes)."""
        return self.forward_head(self.forward_features(x))


class FeatureBackbone(nn.Module):
    """A network without its head: returns the maps (batch, channels, group, height, width) after every stage."""

    def __init__(self, network: EquivariantNetwork) -> None:
        super().__init__()
        self.group = network.group
        self.in_channels = network.in_channels
        self.feature_channels = network.feature_channels
        self.feature_reductions = network.feature_reductions
        self.stages = network.stages

    def forward(self, x: Tensor) -> list[Tensor]:
        """One map per stage, the finest first."""
        features = []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        return features


def named(**parts: nn.Module | None) -> nn.Sequential:
    """A sequence of named layers; None leaves one out."""
    return nn.Sequential(OrderedDict((name, part) for name, part in parts.items() if part is not None))


def pooled(style: Style, over_group: str | None, over_space: str = "mean") -> nn.Sequential:
    """Pool a map (or, with None, an image) to one number per channel."""
    return named(
        over_group=None if over_group is None else GroupPool(style.group, over_group),  # type: ignore[arg-type]
        over_space=nn.AdaptiveMaxPool2d(1) if over_space == "max" else nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
    )
