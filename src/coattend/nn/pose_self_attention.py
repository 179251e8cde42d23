"""Self-attention over poses as a layer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from coattend.functional.pose_linear import pose_bank, relative_table
from coattend.functional.pose_self_attention import attend_poses, attention_weights, bias_matrix
from coattend.groups import FiniteGroup
from coattend.nn.attention import AttentionLayer, register_attention
from coattend.nn.checks import check_dtype, check_integer


@register_attention("pose")
class PoseSelfAttention(AttentionLayer):
    """Replace each pose by a weighted mean over all poses of its position, with scores of queries and keys.

    ``y[c, g] = sum_h softmax_h(q[g] . k[h] / sqrt(d) + b[g^-1 h]) v[c, h]``, separately at each position

    - q, k, v: queries, keys and values, 1x1 group convolutions of x; a head has d = channels / heads channels of them
    - b: ``bias``, one number per head and relative pose

    Co-attention ([RH20]) scores a pose by a linear map of the responses of its own channel; here scores are products of
    responses, over all channels of a head, as section 6 of the paper suggests. There is no mask: the result is not a
    multiple of x. A new layer gives a pose half of its own attention: ``b[0] = log(n - 1)``, and 0 elsewhere.
    Shapes: (batch, channels, group, height, width) in and out; weight (3 * channels, channels, group), of queries, keys
    and values; bias (heads, group).

    >>> PoseSelfAttention(10, group="p4", heads=2)
    PoseSelfAttention(10, group=C4, heads=2)
    """

    options = ("heads",)
    relative: Tensor

    def __init__(
        self,
        channels: int,
        group: FiniteGroup | str,
        heads: int = 1,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels, group)
        self.heads = check_integer(self, "heads", heads, 1)
        if self.channels % self.heads:
            raise ValueError(
                f"{type(self).__name__} expects heads that divide its {self.channels} channels, got {self.heads}."
            )
        n = self.group.order
        self.weight = nn.Parameter(torch.empty(3 * self.channels, self.channels, n, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(self.heads, n, device=device, dtype=dtype))
        self._make_tables(self.weight)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight from N(0, 1 / fan_in), and let each pose attend to itself and to the others equally."""
        nn.init.normal_(self.weight, std=1 / math.sqrt(self.channels * self.group.order))
        nn.init.zeros_(self.bias)
        with torch.no_grad():
            self.bias[:, 0].fill_(math.log(max(self.group.order - 1, 1)))

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        return attend_poses(x, *self._matrices())

    def attention(self, x: Tensor) -> Tensor:
        """Return how much pose g attends to pose h: (batch, heads, group, group, height, width), 1 in sum over h."""
        self.check(x)
        return attention_weights(x, *self._matrices())

    def shares(self, x: Tensor) -> Tensor:
        """Return how much attention each pose gets from the head of a channel, its mean over all poses that attend."""
        received = self.attention(x).mean(2)  # b head h positions
        return received.repeat_interleave(self.channels // self.heads, dim=1)

    def matrix(self) -> Tensor:
        """Return the biases as matrices (heads, source pose h, target pose g)."""
        return bias_matrix(self.bias, self.relative).transpose(1, 2)

    def check(self, x: Tensor) -> None:
        """Require a map with the layer's channels and poses, on the device and in the dtype of its parameters."""
        super().check(x)
        check_dtype(self, x, self.weight)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, heads={self.heads}"

    def _matrices(self) -> tuple[Tensor, Tensor]:
        return pose_bank(self.weight, self.relative), bias_matrix(self.bias, self.relative)

    def _tables(self) -> dict[str, Tensor]:
        return {"relative": relative_table(self.group)}
