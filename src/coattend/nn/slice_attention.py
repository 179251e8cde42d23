"""Co-attention inside the group convolution, before the sum over relative poses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coattend.functional import group_filters
from coattend.nn.attention import CoAttention, Structure
from coattend.nn.checks import check_dtype, check_map
from coattend.nn.conv import PoseConv2d


class SliceCoAttentiveConv2d(PoseConv2d):
    """A group convolution that attends to the responses of each filter slice on its own.

    ``y[o, g] = sum_t A_{o,t}( { sum_i x[i, g' t] * (g'.W[o, i, t]) }_{g'} )(g) + b[o]``

    - t: the relative pose, the filter's group axis; g': the output pose; the input pose they read is g' t
    - A_{o,t}: co-attention over g', one vector per output channel and slice

    Shapes: as GroupConv2d; weight (out, in, group, k, k), attention.weight (out * group, group), channel o * order + t.
    Differs from the paper: Eq. 10 attends after the sum. The parameter counts of the paper's DREN rows and of a-p4-CNN
    fit one attention vector per slice to the last digit, so this form is what reproduces them.

    >>> SliceCoAttentiveConv2d(10, 10, 3, group="p4")(torch.zeros(2, 10, 4, 26, 26)).shape
    torch.Size([2, 10, 4, 24, 24])
    """

    filter_on_group = True
    input_on_group = True
    input_pose: Tensor

    def __init__(self, *geometry: Any, structure: Structure = "group", **named_geometry: Any) -> None:
        super().__init__(*geometry, **named_geometry)
        self.attention = CoAttention(
            self.out_channels * self.group.order, self.group, structure, init_std=self.init_std
        )
        input_pose = torch.tensor(self.group.product.T.copy())  # [t, g'] -> g' t
        self.register_buffer("input_pose", input_pose, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve slice by slice, attend, sum."""
        check_map("SliceCoAttentiveConv2d", x, self.in_channels, self.group.order)
        check_dtype("SliceCoAttentiveConv2d", x, self.weight)
        n = self.group.order
        # Each input pose s feeds all output poses g' (through slice t = g'^-1 s): one channel group per input pose.
        filters = group_filters(self.weight, self.turns, self.relative).permute(3, 0, 1, 2, 4, 5).flatten(0, 2)
        by_input = self.convolve(x.transpose(1, 2).flatten(1, 2), filters, None, n * self.groups)
        by_input = by_input.unflatten(1, (n, self.out_channels, n))  # b s o g' h w
        output_pose = torch.arange(n, device=x.device)
        by_slice = by_input[:, self.input_pose, :, output_pose]  # t g' b o h w
        responses = by_slice.permute(2, 3, 0, 1, 4, 5).flatten(1, 2)  # b (o t) g' h w
        y = self.attention(responses).unflatten(1, (self.out_channels, n)).sum(dim=2)
        return y if self.bias is None else y + self.bias[:, None, None, None]
