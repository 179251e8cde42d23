"""Gates on the input of convolutions, of maps and of images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from coattend.functional.gates import GateBanks, apply_gates, channel_gate, channel_statistics, gate_mask
from coattend.functional.pose_linear import pose_bank, relative_table
from coattend.groups import Filters, FiniteGroup, cyclic, fitting_filters
from coattend.nn._conv_base import Device
from coattend.nn.attention import AttentionLayer, PoseAttention, register_attention
from coattend.nn.checks import check_dtype, check_integer
from coattend.nn.conv import GroupConv2d, LiftingConv2d
from coattend.nn.hooks import has_hooks
from coattend.nn.tables import TabledModule


@register_attention("gate")
class GroupGate2d(PoseAttention):
    """Gate the channels and the positions of a map, on the input of a group convolution.

    ``y = x (1 - alpha_X alpha_C)``, with ``alpha_C[c, g] = sigmoid(W2 * [W1 * mean_u x]_+ + W2 * [W1 * max_u x]_+)``
    and ``alpha_X[g](u) = sigmoid((Psi * (mean_c, max_c)(alpha_C x))[g](u))``

    - W1, W2: ``channel``, 1x1 group convolutions from the channels to a ``reduction``-th of them and back
    - Psi: ``spatial``, one k x k group convolution from two maps to one
    - ``filters``: of the spatial gate, see :class:`PoseConv2d`; rings that do not fit its kernel are left out
    - ``groups``: the gate of channels combines them within as many groups only

    [RB20], attention on feature maps; "1 - alpha" is its residual branch.
    Shapes: (batch, channels, group, height, width) in and out; channel.squeeze (hidden, channels / groups, group),
    channel.excite (channels, hidden / groups, group), spatial.weight (1, 2, group, k, k).

    >>> gate = GroupGate2d(10, group="p4")
    >>> gate(torch.zeros(2, 10, 4, 26, 26)).shape, sum(p.numel() for p in gate.parameters())
    (torch.Size([2, 10, 4, 26, 26]), 792)
    """

    on_input = True
    options = ("filters",)

    def __init__(
        self,
        channels: int,
        group: FiniteGroup | str,
        reduction: int = 2,
        kernel_size: int = 7,
        filters: Filters = "free",
        groups: int = 1,
        *,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels, group)
        _check_gate(self, reduction, kernel_size, groups)
        self.channel = ChannelGate(self.channels, self.group, reduction, groups, device=device, dtype=dtype)
        self.spatial = GroupConv2d(
            2,
            1,
            kernel_size,
            self.group,
            padding=kernel_size // 2,
            bias=False,
            filters=fitting_filters(filters, kernel_size),
            device=device,
            dtype=dtype,
        )

    @classmethod
    def for_images(cls, channels: int, group: FiniteGroup | str, **options: Any) -> LiftingGate2d:
        """Return the gate for the input of a lifting convolution."""
        return LiftingGate2d(channels, group, **options)

    def reset_parameters(self) -> None:
        """Draw all weights from N(0, 1 / fan_in)."""
        self.channel.reset_parameters()
        self.spatial.reset_parameters()

    def mask(self, x: Tensor) -> Tensor:
        """Return ``1 - alpha_X alpha_C``, in [0, 1]."""
        self.check(x)
        alpha_c = self.channel(x)
        return gate_mask(self.spatial(channel_statistics(x, alpha_c)), alpha_c)

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        return self.mask(x) * x if _needs_mask(self) else apply_gates(x, _banks(self))

    def freeze(self, builder: Any, value: Any) -> Any:
        """See :meth:`AttentionLayer.freeze`; one unit in PyTorch."""
        return super().freeze(builder, value) if _needs_mask(self) else builder.gate(self, _banks(self), value)

    def check(self, x: Tensor) -> None:
        """Require a map with the layer's channels and poses, on the device and in the dtype of its parameters."""
        super().check(x)
        check_dtype(self, x, self.channel.squeeze)


class SliceGate2d(GroupGate2d):
    """Gate the responses of the filter slices of a convolution, channel ``o * slices + t``, on its output.

    :class:`GroupGate2d` whose gate of channels combines the slices t of one output channel o only: the attention of
    ``SliceCoAttentiveConv2d(score="gate")``. With one slice it gates each output channel on its own.
    """

    on_input = False
    slice_parameters: ClassVar[Mapping[str, int]] = {"channel.squeeze": 1, "channel.excite": 0}

    def __init__(
        self,
        channels: int,
        group: FiniteGroup | str,
        reduction: int = 2,
        kernel_size: int = 7,
        filters: Filters = "free",
        slices: int = 1,
        *,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        channels, slices = check_integer(self, "channels", channels, 1), check_integer(self, "slices", slices, 1)
        if channels % slices:
            raise ValueError(f"{type(self).__name__} expects a multiple of {slices} slices, got {channels} channels.")
        super().__init__(
            channels, group, reduction, kernel_size, filters, channels // slices, device=device, dtype=dtype
        )


class LiftingGate2d(AttentionLayer):
    """Gate the channels and the positions of an image, on the input of a lifting convolution.

    ``y = x (1 - alpha_X alpha_C)`` as in :class:`GroupGate2d`, where W1 and W2 combine channels only and alpha_X is the
    maximum over the poses of a lifting convolution, so that it moves with the image.

    Shapes: (batch, channels, height, width) in and out; channel.squeeze (hidden, channels, 1), channel.excite
    (channels, hidden, 1), spatial.weight (1, 2, k, k).

    >>> LiftingGate2d(3, group="p4")(torch.zeros(2, 3, 28, 28)).shape
    torch.Size([2, 3, 28, 28])
    """

    input_on_group = False
    on_input = True
    options = ("filters",)

    def __init__(
        self,
        channels: int,
        group: FiniteGroup | str,
        reduction: int = 2,
        kernel_size: int = 7,
        filters: Filters = "free",
        *,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels, group)
        _check_gate(self, reduction, kernel_size, groups=1)
        self.channel = ChannelGate(self.channels, cyclic(1), reduction, device=device, dtype=dtype)
        self.spatial = LiftingConv2d(
            2,
            1,
            kernel_size,
            self.group,
            padding=kernel_size // 2,
            bias=False,
            filters=fitting_filters(filters, kernel_size),
            device=device,
            dtype=dtype,
        )

    def reset_parameters(self) -> None:
        """Draw all weights from N(0, 1 / fan_in)."""
        self.channel.reset_parameters()
        self.spatial.reset_parameters()

    def mask(self, x: Tensor) -> Tensor:
        """Return ``1 - alpha_X alpha_C``, in [0, 1], in the shape of the image."""
        self.check(x)
        single = x.unsqueeze(2)  # a map over the trivial group
        alpha_c = self.channel(single)
        responses: Tensor = self.spatial(channel_statistics(single, alpha_c).squeeze(2))
        return gate_mask(responses.amax(2, keepdim=True), alpha_c).squeeze(2)

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        return self.mask(x) * x if _needs_mask(self) else apply_gates(x.unsqueeze(2), _banks(self)).squeeze(2)

    def freeze(self, builder: Any, value: Any) -> Any:
        """See :meth:`AttentionLayer.freeze`; one unit in PyTorch."""
        return super().freeze(builder, value) if _needs_mask(self) else builder.gate(self, _banks(self), value)

    def check(self, x: Tensor) -> None:
        """Require an image with the layer's channels, on the device and in the dtype of its parameters."""
        super().check(x)
        check_dtype(self, x, self.channel.squeeze)


class ChannelGate(TabledModule):
    """Compute the gate of channels of :class:`GroupGate2d`: (batch, channels, group, height, width) -> (b, c, g)."""

    relative: Tensor

    def __init__(
        self,
        channels: int,
        group: FiniteGroup,
        reduction: int,
        groups: int = 1,
        *,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.group = group
        self.reduction = reduction
        inside = channels // groups
        hidden, n = max(1, inside // reduction), group.order
        self.squeeze = nn.Parameter(torch.empty(groups * hidden, inside, n, device=device, dtype=dtype))
        self.excite = nn.Parameter(torch.empty(channels, hidden, n, device=device, dtype=dtype))
        self._make_tables(self.squeeze)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw both weights from N(0, 1 / fan_in)."""
        for weight in (self.squeeze, self.excite):
            nn.init.normal_(weight, std=1 / math.sqrt(weight[0].numel()))

    def forward(self, x: Tensor) -> Tensor:
        return channel_gate(x, *self.banks())

    def banks(self) -> tuple[Tensor, Tensor]:
        """Return the matrices that squeeze and excite channels and poses."""
        return pose_bank(self.squeeze, self.relative), pose_bank(self.excite, self.relative)

    def extra_repr(self) -> str:
        return f"{len(self.excite)}, group={self.group.name}, reduction={self.reduction}"

    def _tables(self) -> dict[str, Tensor]:
        return {"relative": relative_table(self.group)}


def _banks(gate: GroupGate2d | LiftingGate2d) -> GateBanks:
    return GateBanks(*gate.channel.banks(), gate.spatial.filters())


def _needs_mask(gate: GroupGate2d | LiftingGate2d) -> bool:
    """Return whether the mask has to be computed as such: it is overridden, or a part is replaced or has hooks."""
    if type(gate).mask not in (GroupGate2d.mask, LiftingGate2d.mask) or gate.is_patched:
        return True
    parts = gate.channel, gate.spatial
    return any(type(part) not in (ChannelGate, GroupConv2d, LiftingConv2d) or has_hooks(part) for part in parts)


def _check_gate(layer: AttentionLayer, reduction: object, kernel_size: object, groups: object) -> None:
    """Require a reduction, an odd kernel, with which maps keep their size, and groups that divide the channels."""
    name = type(layer).__name__
    check_integer(layer, "reduction", reduction, 1)
    if check_integer(layer, "kernel_size", kernel_size, 1) % 2 == 0:
        raise ValueError(f"{name} expects an odd kernel_size, so that maps keep their size, got {kernel_size}.")
    if layer.channels % check_integer(layer, "groups", groups, 1):
        raise ValueError(f"{name} expects groups that divide its {layer.channels} channels, got {groups}.")
