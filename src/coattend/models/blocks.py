"""What the layers of a network share: how convolution, attention, norm and down-sampling are put together."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import Tensor, nn

from coattend.groups import FiniteGroup, get_group
from coattend.nn import (
    CoAttention,
    GroupBatchNorm2d,
    GroupConv2d,
    GroupDropout2d,
    LiftingConv2d,
    PoseConv2d,
    ProjectionConv2d,
    SliceCoAttentiveConv2d,
    SpatialMaxPool2d,
)
from coattend.nn.attention import Structure

Attention = Literal["output", "slice"]
Position = Literal["conv", "norm", "relu"]
Downsample = Literal["stride", "pool"]
Init = Literal["fan_in", "he"]


@dataclass(frozen=True)
class Style:
    """The choices that hold for every layer of a network.

    - attention: None; "output", the paper's equations; "slice", attention before the sum over relative poses
    - position: behind the convolution (the paper's place), the norm, or the ReLU
    - downsample: strided convolutions as published, or stride 1 and 2x2 max-pooling between attention and norm
    - init: standard deviation of the weights, 1 / sqrt(fan_in), sqrt(2 / fan_in) or a number; attention vectors are
      drawn like the weights of their layer
    - diagonal: of the attention matrices at the start of training; the paper's is 1
    """

    group: FiniteGroup | str
    attention: Attention | None = None
    structure: Structure = "group"
    position: Position = "conv"
    downsample: Downsample = "stride"
    init: Init | float = "fan_in"
    norm: bool = True
    norm_eps: float = 2e-5
    norm_momentum: float = 0.1
    diagonal: float = 1.0

    def __post_init__(self) -> None:
        for name, choices in (
            ("attention", (None, *get_args(Attention))),
            ("structure", get_args(Structure)),
            ("position", get_args(Position)),
            ("downsample", get_args(Downsample)),
        ):
            if getattr(self, name) not in choices:
                words = ", ".join("none" if c is None else c for c in choices)
                raise ValueError(f"{name} must be one of {words}, got {getattr(self, name)!r}.")
        if self.attention == "slice" and self.position != "conv":
            raise ValueError(
                f"attention=slice acts inside the convolution, so position={self.position} is impossible; "
                "use attention=output or position=conv."
            )
        object.__setattr__(self, "group", get_group(self.group))

    def lift(self, in_channels: int, out_channels: int, kernel_size: int, **geometry: Any) -> nn.Sequential:
        """Image -> map: convolution, attention, down-sampling."""
        return self._convolution(LiftingConv2d, in_channels, out_channels, kernel_size, **geometry)

    def conv(
        self, in_channels: int, out_channels: int, kernel_size: int, attend: bool = True, **geometry: Any
    ) -> nn.Sequential:
        """Map -> map: convolution, attention, down-sampling."""
        return self._convolution(GroupConv2d, in_channels, out_channels, kernel_size, attend, **geometry)

    def project(self, in_channels: int, out_channels: int, kernel_size: int) -> ProjectionConv2d:
        """Map -> image; attention can only act inside, before the poses are summed."""
        layer = ProjectionConv2d(
            in_channels,
            out_channels,
            kernel_size,
            self.group,
            attention=self.attention is not None,
            structure=self.structure,
        )
        std = self.std(layer)
        layer.reset_parameters(std)
        if layer.attention is not None:
            layer.attention.reset_parameters(std, self.diagonal)
        return layer

    def activation(self, channels: int, attention_std: float, dropout: float = 0.0) -> nn.Sequential:
        """Norm and ReLU, with attention behind one of them if that is its position, and element-wise dropout."""
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        if self.norm:
            parts["norm"] = GroupBatchNorm2d(channels, eps=self.norm_eps, momentum=self.norm_momentum)
        if self.attention is not None and self.position == "norm":
            parts["attention"] = self._attention(channels, attention_std)
        parts["act"] = nn.ReLU()
        if self.attention is not None and self.position == "relu":
            parts["attention"] = self._attention(channels, attention_std)
        if dropout:
            parts["dropout"] = GroupDropout2d(dropout, elementwise=True)
        return nn.Sequential(parts)

    def activated(self, convolution: nn.Sequential, dropout: float = 0.0) -> nn.Sequential:
        """A convolution with what follows it: attention, norm, ReLU, dropout."""
        conv = convolution.conv
        assert isinstance(conv, PoseConv2d)
        following = self.activation(conv.out_channels, self.std(conv), dropout)
        return nn.Sequential(OrderedDict([*convolution.named_children(), *following.named_children()]))

    def normalised(self, convolution: nn.Sequential) -> nn.Sequential:
        """A convolution with attention and norm but no ReLU; attention that would follow the ReLU follows the norm."""
        parts = OrderedDict(self.activated(convolution).named_children())
        del parts["act"]
        return nn.Sequential(parts)

    def _convolution(
        self,
        kind: type[PoseConv2d],
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        attend: bool = True,
        stride: int = 1,
        padding: int = 0,
    ) -> nn.Sequential:
        pools = stride > 1 and self.downsample == "pool"
        if pools and stride != 2:
            raise ValueError(f"downsample=pool halves maps, so it can stand for stride 2 only, got stride {stride}.")
        inside = attend and self.attention == "slice" and kind is GroupConv2d
        geometry: dict[str, Any] = {"stride": 1 if pools else stride, "padding": padding}
        conv: PoseConv2d
        if inside:
            conv = SliceCoAttentiveConv2d(
                in_channels, out_channels, kernel_size, self.group, structure=self.structure, **geometry
            )
        else:
            conv = kind(in_channels, out_channels, kernel_size, self.group, **geometry)
        std = self.std(conv)
        conv.reset_parameters(std)
        parts: OrderedDict[str, nn.Module] = OrderedDict(conv=conv)
        if isinstance(conv, SliceCoAttentiveConv2d):
            conv.attention.reset_parameters(std, self.diagonal)
        elif attend and self.attention is not None and self.position == "conv":
            parts["attention"] = self._attention(out_channels, std)
        if pools:
            parts["pool"] = SpatialMaxPool2d(2)
        return nn.Sequential(parts)

    def _attention(self, channels: int, std: float) -> CoAttention:
        return CoAttention(channels, self.group, self.structure, init_std=std, init_diagonal=self.diagonal)

    def std(self, conv: Tensor | nn.Module) -> float:
        """The standard deviation that a convolution's weights, and its attention vectors, are drawn with."""
        assert isinstance(conv, PoseConv2d)
        if isinstance(self.init, str):
            return conv.init_std * (math.sqrt(2) if self.init == "he" else 1)
        return self.init


def stage_widths(width: int | tuple[int, int, int]) -> tuple[int, int, int]:
    """Channels per pose of three stages: given one by one, or the first, which then doubles."""
    if isinstance(width, int):
        return width, 2 * width, 4 * width
    if len(width) != 3:
        raise ValueError(f"width must be one number or three, one per stage, got {width!r}.")
    return width
