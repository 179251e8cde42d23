"""Blocks of a network: how convolution, attention, norm and down-sampling are put together."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from coattend.groups import Filters, fitting_filters
from coattend.models.choices import SLICES, Choices
from coattend.nn import (
    AttentionLayer,
    CoAttention,
    DynamicGroupConv2d,
    GroupBatchNorm2d,
    GroupConv2d,
    GroupConvTranspose2d,
    GroupDropout2d,
    GroupPool,
    LiftingConv2d,
    MultiheadCoAttention,
    PoseConv2d,
    ProjectionConv2d,
    SliceCoAttentiveConv2d,
    SpatialAvgPool2d,
    SpatialMaxPool2d,
)
from coattend.nn.sequence import FusedSequential
from coattend.nn.slice_conv import Score

OverGroup = Literal["max", "mean", "sum"]


class ConvBlock(FusedSequential):
    """A convolution, ``conv``, and what follows it: ``attention``, ``pool``, ``norm``, ``act``, ``dropout``.

    Before it is ``gate``, the attention on its input, if the network has such a form.
    """

    conv: PoseConv2d | DynamicGroupConv2d


@dataclass(frozen=True)
class Blocks(Choices):
    """Build the layers of a network from the choices that all of them share, see :class:`Choices`."""

    def lift(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
    ) -> ConvBlock:
        """Return image -> map: convolution, attention, down-sampling."""
        conv = LiftingConv2d(
            in_channels,
            out_channels,
            kernel_size,
            self.group,
            self._stride(stride),
            padding,
            bias=bias,
            filters=self._filters(kernel_size),
        )
        conv.reset_parameters(self.std(conv))
        return self._block(conv, attend=True, pool=stride != conv.stride)

    def conv(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        padding: int = 0,
        attend: bool = True,
        pool_first: bool = False,
    ) -> ConvBlock:
        """Return map -> map: convolution, attention, down-sampling.

        With ``pool_first`` down-sampling that is not a stride is a mean before the convolution, which then costs as
        much as a strided one.
        """
        geometry = (in_channels, out_channels, kernel_size, self.group, self._stride(stride), padding)
        filters = self._filters(kernel_size)
        conv: GroupConv2d | SliceCoAttentiveConv2d
        if attend and self.attention in SLICES:
            score: Score = "gate" if self.attention == "slice_gate" else "co-attention"
            conv = SliceCoAttentiveConv2d(*geometry, filters=filters, structure=self.structure, score=score)
        else:
            conv = GroupConv2d(*geometry, filters=filters)
        # Constructors have drawn weights already. Drawing them again keeps what a seed gives equal between versions.
        std = self.std(conv)
        conv.reset_parameters(std)
        if isinstance(conv, SliceCoAttentiveConv2d):
            if isinstance(conv.attention, CoAttention):
                conv.attention = self._co_attention(conv.attention, std)
            attend = False
        pool = stride != conv.stride
        block = self._block(conv, attend, pool=pool and not pool_first)
        if pool and pool_first:
            block = ConvBlock(OrderedDict(pool=SpatialAvgPool2d(2), **block._modules))
        return block

    def depthwise(self, channels: int, kernel_size: int) -> ConvBlock:
        """Return map -> map of the same size that filters each channel and pose on its own."""
        conv = GroupConv2d(
            channels,
            channels,
            kernel_size,
            self.group,
            padding=kernel_size // 2,
            groups=channels,
            filters=self._filters(kernel_size),
            relative=(0,),
        )
        conv.reset_parameters(self.std(conv))
        return self._block(conv, attend=False, pool=False)

    def up(self, in_channels: int, out_channels: int) -> ConvBlock:
        """Return map -> map of twice the size: transposed convolution, attention."""
        conv = GroupConvTranspose2d(in_channels, out_channels, 2, self.group, 2, filters=self._filters(2))
        conv.reset_parameters(self.std(conv))
        return self._block(conv, attend=self.attention not in SLICES, pool=False)

    def dynamic(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        slices: int = 1,
        hidden: int | None = None,
        generated: bool = True,
    ) -> ConvBlock:
        """Return map -> map of the same size with generated filters: convolution, attention."""
        if self.attention in SLICES:
            raise ValueError(
                f"attention={self.attention} acts before the sum over relative poses, and layers with generated "
                "filters have no such sum; use attention=output."
            )
        conv = DynamicGroupConv2d(
            in_channels, out_channels, kernel_size, self.group, slices, hidden, self._filters(kernel_size), generated
        )
        conv.reset_parameters(self.std(conv))
        return self._block(conv, attend=True, pool=False)

    def project(self, in_channels: int, out_channels: int, kernel_size: int) -> ProjectionConv2d | ConvBlock:
        """Return map -> image; attention can only act inside, before the poses are summed, or on the input."""
        attention = self.attention is not None and self.form is CoAttention
        conv = ProjectionConv2d(
            in_channels,
            out_channels,
            kernel_size,
            self.group,
            filters=self._filters(kernel_size),
            attention=attention,
            structure=self.structure,
        )
        std = self.std(conv)
        conv.reset_parameters(std)
        if isinstance(conv.attention, CoAttention):
            conv.attention = self._co_attention(conv.attention, std)
        elif self.form.on_input:
            return self._block(conv, attend=True, pool=False)
        elif self.attention is not None:
            conv.attention = self._attention(out_channels, std)
        return conv

    def activate(self, block: ConvBlock, dropout: float = 0.0) -> ConvBlock:
        """Append norm, ReLU, the attention that follows one of them, and element-wise dropout to a convolution."""
        self._append_activation(block, block.conv.out_channels, self.std(block.conv), dropout=dropout)
        return block

    def normalize(self, block: ConvBlock) -> ConvBlock:
        """Append norm and the attention that follows it, or would follow a ReLU, to a convolution."""
        self._append_activation(block, block.conv.out_channels, self.std(block.conv), act=False)
        return block

    def preactivation(self, block: ConvBlock) -> nn.Sequential:
        """Return norm, ReLU and the attention that follows one of them, for the input of a convolution."""
        layers = FusedSequential()
        self._append_activation(layers, block.conv.in_channels, self.std(block.conv))
        return layers

    def pool(self, over_group: OverGroup | None, over_space: Literal["max", "mean"] = "mean") -> nn.Sequential:
        """Return the pooling of a map (None: of an image) to one number per channel."""
        return named(
            over_group=None if over_group is None else GroupPool(self.group, over_group),
            over_space=nn.AdaptiveMaxPool2d(1) if over_space == "max" else nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
        )

    def std(self, conv: PoseConv2d | DynamicGroupConv2d) -> float:
        """Return the standard deviation with which a convolution's weights and attention vectors are drawn."""
        if isinstance(self.init_std, str):
            return conv.init_std * (math.sqrt(2) if self.init_std == "he" else 1)
        return self.init_std

    def _filters(self, kernel_size: int) -> Filters:
        return fitting_filters(self.filters, kernel_size)

    def _stride(self, stride: int) -> int:
        if self.downsample == "stride" or stride == 1:
            return stride
        if stride != 2:
            raise ValueError(f"downsample=pool halves maps, so it can replace stride 2 only, got stride {stride}.")
        return 1

    def _block(self, conv: PoseConv2d | DynamicGroupConv2d, attend: bool, pool: bool) -> ConvBlock:
        gate = self._gate(conv) if attend and self.form.on_input else None
        block = ConvBlock(OrderedDict(conv=conv) if gate is None else OrderedDict(gate=gate, conv=conv))
        if attend and self.attention is not None and self.position == "conv" and not self.form.on_input:
            block.add_module("attention", self._attention(conv.out_channels, self.std(conv)))
        if pool:
            block.add_module("pool", SpatialMaxPool2d(2))
        return block

    def _append_activation(
        self, layers: nn.Sequential, channels: int, std: float, act: bool = True, dropout: float = 0.0
    ) -> None:
        position = None if self.attention is None else self.position
        if self.norm:
            layers.add_module("norm", GroupBatchNorm2d(channels, eps=self.norm_eps, momentum=self.norm_momentum))
        if position == "norm" or (position == "relu" and not act):
            layers.add_module("attention", self._attention(channels, std))
        if act:
            layers.add_module("act", nn.ReLU())
        if position == "relu" and act:
            layers.add_module("attention", self._attention(channels, std))
        if dropout:
            layers.add_module("dropout", GroupDropout2d(dropout, elementwise=True))

    def _gate(self, conv: PoseConv2d | DynamicGroupConv2d) -> AttentionLayer | None:
        """Return the attention on the input of a convolution."""
        make = self.form if conv.input_on_group else self.form.for_images
        return make(conv.in_channels, group=self.group, **self._form_options())

    def _form_options(self) -> dict[str, Any]:
        """Return the options that the constructor of the attention layers takes."""
        return {name: getattr(self, name) for name in self.form.options}

    def _attention(self, channels: int, std: float) -> AttentionLayer:
        if self.form is not CoAttention:
            return self.form(channels, group=self.group, **self._form_options())
        if self.heads == 1:
            return CoAttention(channels, self.group, self.structure, std, self.diagonal, self.scale)
        return MultiheadCoAttention(
            channels, self.group, self.structure, std, self.diagonal, self.scale, heads=self.heads
        )

    def _co_attention(self, inside: CoAttention, std: float) -> CoAttention:
        """Return the attention inside a convolution, given the one that the convolution was built with."""
        if (self.scale, self.heads) == (None, 1):
            inside.reset_parameters(std, self.diagonal)
            return inside
        attention = self._attention(inside.channels, std)
        assert isinstance(attention, CoAttention)
        return attention


def named(**layers: nn.Module | None) -> nn.Sequential:
    """Return a sequence of named layers, without those that are None."""
    return nn.Sequential(OrderedDict((name, layer) for name, layer in layers.items() if layer is not None))
