"""The layers of [LI18] by their names: the same convolutions over quarter turns counted clockwise."""

from __future__ import annotations

from typing import Any

from coattend.groups import cyclic
from coattend.nn.conv import GroupConv2d, LiftingConv2d, ProjectionConv2d

CLOCKWISE = cyclic(4, clockwise=True)


class CycleConv2d(LiftingConv2d):
    """DREN's cycle layer: :class:`LiftingConv2d` whose pose r is a clockwise rotation by r quarter turns."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, **geometry: Any) -> None:
        super().__init__(in_channels, out_channels, kernel_size, CLOCKWISE, **geometry)


class IsotonicConv2d(GroupConv2d):
    """DREN's isotonic layer: :class:`GroupConv2d` whose pose r is a clockwise rotation by r quarter turns."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, **geometry: Any) -> None:
        super().__init__(in_channels, out_channels, kernel_size, CLOCKWISE, **geometry)


class DecycleConv2d(ProjectionConv2d):
    """DREN's decycle layer: :class:`ProjectionConv2d` whose pose r is a clockwise rotation by r quarter turns."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, **geometry: Any) -> None:
        super().__init__(in_channels, out_channels, kernel_size, CLOCKWISE, **geometry)
