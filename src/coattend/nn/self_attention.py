"""Self-attention over positions and poses, and the transformer block that it makes up."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from coattend.functional.self_attention import (
    attend_positions,
    check_window,
    received_attention,
    turned_frequencies,
)
from coattend.groups import FiniteGroup
from coattend.nn._conv_base import Device
from coattend.nn.attention import AttentionLayer
from coattend.nn.checks import check_dtype, check_integer, check_number, check_planar
from coattend.nn.conv import GroupConv2d
from coattend.nn.norm import GroupLayerNorm2d

LONGEST = 100.0  # the ratio of the longest to the shortest wavelength of rotary positions


class GroupSelfAttention2d(AttentionLayer):
    """Self-attention over the whole group: along the positions in every pose, across poses by the projections.

    ``y[g](u) = sum_w softmax_w( q[g](u)^T R(g^-1 (w - u)) k[g](w) / sqrt(d) ) v[g](w)`` for each head, with q, k, v and
    the output by 1x1 group convolutions, which mix the poses. R are rotary positions in the frame of the pose: their
    frequencies turn with it, and positions are counted from the center, so that quarter turns and flips of the map
    change nothing else. The heads of all poses are heads of one ``scaled_dot_product_attention``.

    The attention over the entire group is future work in [RH20] section 6.

    - heads: per pose; channels / heads has to be even
    - window: attend within windows of this size, which have to cover the map; None for the whole map

    Shapes: (batch, channels, group, height, width) in and out; qkv.weight (3 * channels, channels, group, 1, 1),
    out.weight (channels, channels, group, 1, 1).

    >>> GroupSelfAttention2d(16, group="p4m", heads=4)(torch.zeros(2, 16, 8, 6, 6)).shape
    torch.Size([2, 16, 8, 6, 6])
    """

    frequencies: Tensor

    def __init__(
        self,
        channels: int,
        group: FiniteGroup | str,
        heads: int = 4,
        window: int | None = None,
        *,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels, group)
        self.heads = check_integer(self, "heads", heads, 1)
        self.window = None if window is None else check_integer(self, "window", window, 1)
        if self.channels % (2 * self.heads):
            raise ValueError(
                f"{type(self).__name__} splits channels={self.channels} into heads={self.heads} with an even number of "
                f"channels each; pass a multiple of {2 * self.heads} channels."
            )
        check_planar(self, self.group)
        self.qkv = GroupConv2d(self.channels, 3 * self.channels, 1, self.group, device=device, dtype=dtype)
        self.out = GroupConv2d(self.channels, self.channels, 1, self.group, device=device, dtype=dtype)
        self._make_tables(self.qkv.weight)

    def reset_parameters(self) -> None:
        """Draw the weights of the projections."""
        self.qkv.reset_parameters()
        self.out.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        return self.out(self.attend(self.qkv(x)))

    def shares(self, x: Tensor) -> Tensor:
        """Return how much attention each position gets from the head of a channel, relative to even attention."""
        self.check(x)
        received = received_attention(self.qkv(x).unflatten(1, (3, -1)), self.frequencies, self.window)
        return received.repeat_interleave(self.channels // self.heads, dim=1)

    def check(self, x: Tensor) -> None:
        """Require a map that windows cover, in the dtype of the weights."""
        super().check(x)
        check_dtype(self, x, self.qkv.weight)
        check_window(type(self).__name__, x, self.window)

    def attend(self, qkv: Tensor) -> Tensor:
        """Attend with queries, keys and values: (batch, 3 * channels, group, ...) -> (batch, channels, group, ...)."""
        return attend_positions(qkv.unflatten(1, (3, -1)), self.frequencies, self.window)

    def extra_repr(self) -> str:
        text = f"{super().extra_repr()}, heads={self.heads}"
        return text if self.window is None else f"{text}, window={self.window}"

    def _tables(self) -> dict[str, Tensor]:
        return {"frequencies": turned_frequencies(rotary_frequencies(self.heads, self.channels), self.group)}


def rotary_frequencies(heads: int, channels: int) -> Tensor:
    """Return frequencies (heads, channels / heads / 2, 2) from 1 to 1 / 100 radian per pixel, in all directions."""
    pairs = channels // heads // 2
    numbers = torch.arange(heads * pairs, dtype=torch.float64).reshape(pairs, heads).T
    sizes = LONGEST ** (-torch.arange(pairs, dtype=torch.float64) / max(1, pairs - 1))
    angles = numbers * (math.pi * (3 - math.sqrt(5)))  # multiples of the golden angle are spread evenly
    return torch.stack((angles.cos(), angles.sin()), dim=-1) * sizes[:, None]


class LayerScale(nn.Module):
    """Multiply each channel of a map by a learned number, shared over the poses."""

    def __init__(self, channels: int, value: float, *, device: Device = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.value = value
        self.weight = nn.Parameter(torch.empty(channels, 1, 1, 1, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set all factors to the first value."""
        nn.init.constant_(self.weight, self.value)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class GroupTransformerBlock(nn.Module):
    """Self-attention and a pointwise network, each after a layer norm and added to its input.

    ``x + A(norm(x))``, then ``x + M(norm(x))`` with A :class:`GroupSelfAttention2d` and M two 1x1 group convolutions
    with GELU between them.

    - mlp: the channels between the two convolutions, relative to those of the map
    - layer_scale: the first value of a learned factor per channel on each branch; None for no such factors

    Shapes: (batch, channels, group, height, width) in and out.

    >>> GroupTransformerBlock(16, group="p4m", heads=4)(torch.zeros(2, 16, 8, 6, 6)).shape
    torch.Size([2, 16, 8, 6, 6])
    """

    def __init__(
        self,
        channels: int,
        group: FiniteGroup | str,
        heads: int = 4,
        window: int | None = None,
        mlp: int = 4,
        layer_scale: float | None = None,
        *,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        inner = check_integer(self, "mlp", mlp, 1) * check_integer(self, "channels", channels, 1)
        self.norm1 = GroupLayerNorm2d(channels, device=device, dtype=dtype)
        self.attention = GroupSelfAttention2d(channels, group, heads, window, device=device, dtype=dtype)
        self.scale1 = self._scale(channels, layer_scale, device, dtype)
        self.norm2 = GroupLayerNorm2d(channels, device=device, dtype=dtype)
        self.expand = GroupConv2d(channels, inner, 1, self.attention.group, device=device, dtype=dtype)
        self.act = nn.GELU()
        self.reduce = GroupConv2d(inner, channels, 1, self.attention.group, device=device, dtype=dtype)
        self.scale2 = self._scale(channels, layer_scale, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.scale1(self.attention(self.norm1(x)))
        return x + self.scale2(self.reduce(self.act(self.expand(self.norm2(x)))))

    def _scale(self, channels: int, value: float | None, device: Device, dtype: torch.dtype | None) -> nn.Module:
        if value is None:
            return nn.Identity()
        return LayerScale(channels, check_number(self, "layer_scale", value, 0), device=device, dtype=dtype)
