"""Networks as a user would write them, for tests that train ``tests.own_networks:...``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import coattend as ca


def segmenter(num_classes: int, in_channels: int, width: int = 4) -> nn.Module:
    """Image -> logits of every pixel; exactly equivariant to quarter turns at even sizes."""
    G = ca.get_group("p4")
    return nn.Sequential(
        ca.nn.LiftingConv2d(in_channels, width, 3, group=G, padding=1),
        ca.nn.GroupBatchNorm2d(width),
        nn.ReLU(),
        ca.nn.SpatialMaxPool2d(2),
        ca.nn.GroupConv2d(width, width, 3, group=G, padding=1),
        nn.ReLU(),
        ca.nn.SpatialUpsample2d(2),
        ca.nn.GroupPool(group=G),
        nn.Conv2d(width, num_classes, 1),
    )


class Plain(nn.Module):
    """A small network without any layer of this library."""

    def __init__(self, num_classes: int, in_channels: int = 3, width: int = 6) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(in_channels, width, 3, padding=1), nn.ReLU())
        self.head = nn.Linear(2 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        return self.head(torch.cat([x.mean((2, 3)), x.amax((2, 3))], dim=1))


def equivariant(num_classes: int, in_channels: int) -> nn.Module:
    G = ca.get_group("p4m")
    return nn.Sequential(
        ca.nn.LiftingConv2d(in_channels, 4, 3, group=G, padding=1),
        ca.nn.CoAttention(4, group=G),
        nn.ReLU(),
        ca.nn.GroupPool(group=G),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, num_classes),
    )


def needs_more(num_classes: int, depth: int) -> nn.Module:
    return Plain(num_classes, width=depth)


def no_module(num_classes: int) -> int:
    return num_classes


NUMBER = 3
