"""Networks that ``coattend bench`` compares."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from coattend.models import create_model
from coattend.models.blocks import ConvBlock
from coattend.nn import CoAttention, DynamicGroupConv2d, GroupConv2d


def random_batch(images: int, size: int) -> tuple[Tensor, Tensor]:
    """Return random images and labels."""
    return torch.randn(images, 1, size, size), torch.arange(images) % 10


def without_dropout(model: str) -> nn.Module:
    """Return a network of the zoo without dropout, which the other networks do not have."""
    return create_model(model, dropout=0.0)


def plain_network(width: int = 40, kernel: int = 3) -> nn.Sequential:
    """Return the layers of p4-CNN as plain convolutions between as many maps (10 channels in 4 poses)."""
    layers: list[nn.Module] = []
    for number in range(1, 7):
        conv = nn.Conv2d(1 if number == 1 else width, width, kernel, padding=(kernel - 3) // 2)
        layers += [conv, nn.BatchNorm2d(width), nn.ReLU()]
        if number == 2:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Conv2d(width, 10, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def p4_network_of_e4_shape() -> nn.Module:
    """Return e4-CNN with 3x3 group convolutions between as many channels instead of generated filters."""
    network = without_dropout("e4cnn")
    for block in network.modules():
        if isinstance(block, ConvBlock) and isinstance(block.conv, DynamicGroupConv2d):
            channels = block.conv.out_channels
            block.conv = GroupConv2d(channels, channels, 3, block.conv.group, padding=1, bias=False)
    return network


class LiteralCoAttention(CoAttention):
    """[RH20] Eqs. 6-8 in tensor operations, which save every intermediate result for backward."""

    def forward(self, x: Tensor) -> Tensor:
        """Multiply the map by its mask."""
        logits = torch.einsum("bchyx,chg->bcgyx", x, self.matrix())
        softmax = torch.softmax(logits / self.group.order, dim=2)
        return softmax / softmax.amax(dim=2, keepdim=True) * x


def literal_network() -> nn.Module:
    """Return a-p4-CNN with the literal formula as its attention."""
    return create_model("a_p4cnn", attention=LiteralCoAttention, dropout=0.0)


class E2cnnNetwork(nn.Module):
    """p4-CNN in e2cnn: regular fields of C4, then ten scalar fields."""

    def __init__(self, width: int = 10) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an old package
            gspaces, enn = (importlib.import_module(f"e2cnn.{name}") for name in ("gspaces", "nn"))
            space = gspaces.Rot2dOnR2(4)
            self.image = enn.FieldType(space, [space.trivial_repr])
            regular = enn.FieldType(space, width * [space.regular_repr])
            layers: list[Any] = []
            for number in range(1, 7):
                source = self.image if number == 1 else regular
                layers += [enn.R2Conv(source, regular, kernel_size=3), enn.InnerBatchNorm(regular), enn.ReLU(regular)]
                if number == 2:
                    layers.append(enn.PointwiseMaxPool(regular, 2))
            layers.append(enn.R2Conv(regular, enn.FieldType(space, 10 * [space.trivial_repr]), kernel_size=4))
            self.layers = enn.SequentialModule(*layers)
        self.tensor = enn.GeometricTensor

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.layers(self.tensor(x, self.image)).tensor.flatten(1)
