"""The contestants: p4-CNN and what it is measured against."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coattend.models import create_model
from coattend.nn import CoAttention

WIDTH = 40  # maps of p4-CNN: 10 channels in 4 poses


def batch(images: int, size: int) -> tuple[Tensor, Tensor]:
    """Random images and labels."""
    return torch.randn(images, 1, size, size), torch.arange(images) % 10


def model(name: str) -> nn.Module:
    """One of our own, without dropout, which all contestants lack."""
    return create_model(name, dropout=0.0)


def plain(width: int = WIDTH) -> nn.Sequential:
    """p4-CNN's layers as plain convolutions between as many maps: the limit of what a group convolution can reach."""
    layers: list[nn.Module] = []
    for number in range(1, 7):
        layers += [nn.Conv2d(1 if number == 1 else width, width, 3), nn.BatchNorm2d(width), nn.ReLU()]
        if number == 2:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Conv2d(width, 10, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten())


class LiteralCoAttention(CoAttention):
    """[RH20] Eqs. 6-8 as one would write them down, with everything between kept for the backward."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        logits = torch.einsum("bchyx,chg->bcgyx", x, self.matrix())
        softmax = torch.softmax(logits / self.group.order, dim=2)
        return softmax / softmax.amax(dim=2, keepdim=True) * x


def literal(name: str) -> nn.Module:
    """A network of ours whose attention is the literal formula."""
    network = model(name)
    for module in network.modules():
        if type(module) is CoAttention:
            module.__class__ = LiteralCoAttention
    return network
