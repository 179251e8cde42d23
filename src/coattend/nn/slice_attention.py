"""Co-attention inside the group convolution, before the sum over relative poses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from coattend.functional import attend_slices, group_filters, plane_index
from coattend.nn.attention import CoAttention, Structure
from coattend.nn.checks import check_dtype, check_map
from coattend.nn.conv import PoseConv2d

# Blocks beyond 32 MB go back to the system when freed (glibc), and fetching them anew page by page costs more than the
# attention; smaller ones also stay in the cache from the convolution to the attention.
PART_BYTES = 24 * 2**20


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

    def __init__(self, *geometry: Any, structure: Structure = "group", **named_geometry: Any) -> None:
        super().__init__(*geometry, **named_geometry)
        self.attention = CoAttention(
            self.out_channels * self.group.order, self.group, structure, init_std=self.init_std
        )
        n, product = self.group.order, self.group.product
        # Where the convolution leaves the response of slice t at output pose g': by input pose, channel, output pose.
        self.rows = [int(product[g, t]) * self.out_channels * n + g for t in range(n) for g in range(n)]

    def forward(self, x: Tensor) -> Tensor:
        """Convolve slice by slice, attend, sum."""
        check_map("SliceCoAttentiveConv2d", x, self.in_channels, self.group.order)
        check_dtype("SliceCoAttentiveConv2d", x, self.weight)
        n = self.group.order
        # Each input pose s feeds all output poses g' (through slice t = g'^-1 s): one channel group per input pose.
        filters = group_filters(self.weight, self.turns, self.relative).permute(3, 0, 1, 2, 4, 5).flatten(0, 2)
        parts = [
            self._attended(self.convolve(part, filters, None, n * self.groups))
            for part in self._parts(x.transpose(1, 2).flatten(1, 2))
        ]
        y = torch.cat(parts) if len(parts) > 1 else parts[0]
        return y if self.bias is None else y.add_(self.bias[:, None, None, None])

    def _parts(self, x: Tensor) -> tuple[Tensor, ...]:
        """The batch in as many parts as keep the responses of each small; compilers and hooks get it whole."""
        if torch.compiler.is_compiling() or x.device.type != "cpu" or _is_watched(self.attention):
            return (x,)
        reach, step = self.dilation * (self.kernel_size - 1), self.stride
        height, width = ((size + 2 * self.padding - reach - 1) // step + 1 for size in x.shape[-2:])
        image_bytes = self.group.order**2 * self.out_channels * height * width * x.element_size()
        return x.split(max(1, PART_BYTES // max(1, image_bytes)))

    def _attended(self, planes: Tensor) -> Tensor:
        n = self.group.order
        if not _is_watched(self.attention):
            return attend_slices(planes, self.attention.matrix(), self.rows, channel_step=n)
        index = plane_index(planes, self.rows, channel_step=n)
        responses = planes.index_select(1, index).unflatten(1, (-1, n))  # b (o t) g' h w
        return self.attention(responses).unflatten(1, (self.out_channels, n)).sum(dim=2)


def _is_watched(module: nn.Module) -> bool:
    """Whether a hook wants to see what goes into a module or comes out of it."""
    return bool(module._forward_pre_hooks or module._forward_hooks)
