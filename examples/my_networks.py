"""Networks of your own for ``coattend train my_networks:unet``: functions of num_classes and in_channels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import coattend as ca


def block(in_channels: int, out_channels: int, group: ca.FiniteGroup) -> nn.Sequential:
    """Convolve, attend, normalize."""
    return nn.Sequential(
        ca.nn.GroupConv2d(in_channels, out_channels, 3, group=group, padding=1),
        ca.nn.CoAttention(out_channels, group=group),
        ca.nn.GroupBatchNorm2d(out_channels),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """A U-Net on a group: image -> logits of every pixel; sizes divisible by 4 are exact."""

    def __init__(self, num_classes: int, in_channels: int, width: int, group: ca.FiniteGroup) -> None:
        super().__init__()
        self.lift = ca.nn.LiftingConv2d(in_channels, width, 3, group=group, padding=1)
        self.down1, self.down2 = block(width, width, group), block(width, 2 * width, group)
        self.middle = block(2 * width, 2 * width, group)
        self.up2, self.up1 = block(4 * width, width, group), block(2 * width, width, group)
        self.pool, self.enlarge = ca.nn.SpatialMaxPool2d(2), ca.nn.SpatialUpsample2d(2)
        self.head = nn.Sequential(ca.nn.GroupPool(group=group), nn.Conv2d(width, num_classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (batch, classes, height, width)."""
        fine = self.down1(self.lift(x))
        coarse = self.down2(self.pool(fine))
        y = self.middle(self.pool(coarse))
        y = self.up2(torch.cat([self.enlarge(y), coarse], dim=1))
        y = self.up1(torch.cat([self.enlarge(y), fine], dim=1))
        return self.head(y)


def unet(num_classes: int, in_channels: int, width: int = 4, symmetry: str = "p4") -> nn.Module:
    """Build a network for segmentation."""
    return UNet(num_classes, in_channels, width, ca.get_group(symmetry))


def small(num_classes: int, in_channels: int, width: int = 8, symmetry: str = "p4m") -> nn.Module:
    """Build a network with one vector of outputs: classes, labels or numbers."""
    group = ca.get_group(symmetry)
    return nn.Sequential(
        ca.nn.LiftingConv2d(in_channels, width, 5, group=group, padding=2),
        ca.nn.GroupBatchNorm2d(width),
        nn.ReLU(),
        ca.nn.SpatialMaxPool2d(2),
        block(width, width, group),
        ca.nn.SpatialMaxPool2d(2),
        block(width, 2 * width, group),
        ca.nn.GroupPool(group=group),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, num_classes),
    )
