"""The layers of [LI18] by their names: the same convolutions over quarter turns counted clockwise."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from coattend.functional.geometry import Size
from coattend.groups import cyclic
from coattend.nn._conv_base import Device
from coattend.nn.co_attention import Structure
from coattend.nn.conv import GroupConv2d, LiftingConv2d, ProjectionConv2d

CLOCKWISE = cyclic(4, clockwise=True)


class CycleConv2d(LiftingConv2d):
    """DREN's cycle layer: :class:`LiftingConv2d` whose pose r is a clockwise rotation by r quarter turns."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            CLOCKWISE,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            device=device,
            dtype=dtype,
        )


class IsotonicConv2d(GroupConv2d):
    """DREN's isotonic layer: :class:`GroupConv2d` whose pose r is a clockwise rotation by r quarter turns.

    This is [RH20] Eq. 3 as printed: ``W(theta_r u')`` is the filter turned by the inverse of ``theta_r``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        relative: Iterable[int] | None = None,
        *,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            CLOCKWISE,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            relative=relative,
            device=device,
            dtype=dtype,
        )


class DecycleConv2d(ProjectionConv2d):
    """DREN's decycle layer: :class:`ProjectionConv2d` whose pose r is a clockwise rotation by r quarter turns."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        attention: bool = False,
        structure: Structure = "group",
        *,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            CLOCKWISE,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            attention=attention,
            structure=structure,
            device=device,
            dtype=dtype,
        )
