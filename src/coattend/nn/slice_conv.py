"""Co-attention inside the group convolution, before the sum over relative poses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from coattend.functional import turned_slices
from coattend.groups import FiniteGroup, Interpolation
from coattend.nn._conv_base import PoseConv2d, batch_parts
from coattend.nn.attention import CoAttention, PoseAttention, Structure, attend_gathered
from coattend.nn.checks import Size, check_dtype, check_map

if TYPE_CHECKING:
    from typing_extensions import Self

# Responses most of which are still in the cache when the attention reads them, and small enough that the allocator
# keeps their memory: fetching it anew page by page costs more than the attention.
PART_BYTES = 12 * 2**20


class SliceCoAttentiveConv2d(PoseConv2d):
    """A group convolution that attends to the responses of each filter slice on its own.

    ``y[o, g] = sum_t A_{o,t}( { sum_i x[i, g' t] * (g'.W[o, i, t]) }_{g'} )(g) + b[o]``

    - t: the relative pose, the filter's group axis; g': the output pose; the input pose they read is g' t
    - A_{o,t}: co-attention over g', one vector per output channel and slice
    - ``relative=T``: the sum is over t in T only, and so are convolution and attention
    - ``attention``: a :class:`CoAttention`; any other module instead gets and returns responses
      (batch, out * |T|, group, height', width'). They are not gathered for a :class:`PoseAttention` that computes
      slices faster, see :meth:`PoseAttention.is_fusible`.

    Shapes: as GroupConv2d; weight (out, in, group, k, k), attention.weight (out * group, group), channel o * order + t;
    with |T| slices in the place of one per element where ``relative`` is given.
    Differs from the paper: Eq. 10 attends after the sum. The parameter counts of the paper's DREN rows and of a-p4-CNN
    fit one attention vector per slice to the last digit, so this form is what reproduces them.

    >>> SliceCoAttentiveConv2d(10, 10, 3, group="p4")(torch.zeros(2, 10, 4, 26, 26)).shape
    torch.Size([2, 10, 4, 24, 24])
    """

    filter_on_group = True
    input_on_group = True
    parameters_per_pose = ("weight", "attention.weight")
    slices: Tensor
    poses: Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        group: FiniteGroup | str,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        interpolation: Interpolation = "bicubic",
        relative: Iterable[int] | None = None,
        structure: Structure = "group",
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            group,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            interpolation,
            relative,
        )
        self.attention = CoAttention(
            self.out_channels * len(self.relative), self.group, structure, init_std=self.init_std
        )

    def forward(self, x: Tensor) -> Tensor:
        """Convolve slice by slice, attend, sum."""
        check_map(self, x, self.in_channels, self.group.order)
        check_dtype(self, x, self.weight)
        filters = self.slice_filters()
        parts = [
            self._attended(self.convolve(part, filters, None, self.group.order * self.groups))
            for part in self._parts(x.transpose(1, 2).flatten(1, 2))
        ]
        y = torch.cat(parts) if len(parts) > 1 else parts[0]
        return y if self.bias is None else y + self.bias[:, None, None, None]

    def slice_filters(self) -> Tensor:
        """The filters of all slices: one channel group per input pose, in it a plane per channel and output pose."""
        return turned_slices(self.weight, self.turns, self.slices, self.poses).permute(2, 0, 3, 1, 4, 5).flatten(0, 2)

    def restricted(self, relative: Iterable[int]) -> Self:
        """See :meth:`PoseConv2d.restricted`; the attention of a slice goes with it."""
        layer = super().restricted(relative)
        layer.attention.channels = len(layer.attention.weight)
        return layer

    def _selected_parameters(self, index: Tensor) -> dict[str, Tensor]:
        vectors = self.attention.weight.unflatten(0, (self.out_channels, len(self.relative)))
        return {
            **super()._selected_parameters(index),
            "attention.weight": vectors.index_select(1, index).flatten(0, 1),
        }

    def _tables(self) -> dict[str, Tensor]:
        # Input pose s feeds the output poses g' = s t^-1. The convolution leaves them in ascending order after channel
        # and input pose; self.rows says where that of slice t and output pose g' is.
        group, relative = self.group, np.array(self.relative)
        everything, kept = np.arange(group.order), np.arange(len(relative))
        fed = np.sort(group.product[:, group.inverse[relative]], axis=1)
        number = np.zeros(group.order, dtype=np.int64)
        number[relative] = kept
        place = np.zeros((group.order, group.order), dtype=np.int64)
        np.put_along_axis(place, fed, kept[None], axis=1)
        read = group.product[:, relative].T  # [t, g'] -> s
        self.rows: list[int] = (read * self.out_channels * len(kept) + place[read, everything]).ravel().tolist()
        return {
            **super()._tables(),
            "slices": torch.tensor(number[group.relative[fed, everything[:, None]]]),
            "poses": torch.tensor(fed),
        }

    def _parts(self, x: Tensor) -> tuple[Tensor, ...]:
        """The batch in as many parts as keep the responses of each small; whole for an attention that is called."""
        if not (isinstance(self.attention, PoseAttention) and self.attention.is_fusible()):
            return (x,)
        reach, step = self.dilation * (self.kernel_size - 1), self.stride
        height, width = ((size + 2 * self.padding - reach - 1) // step + 1 for size in x.shape[-2:])
        planes = self.group.order * len(self.relative) * self.out_channels
        return batch_parts(x, planes * height * width * x.element_size(), PART_BYTES)

    def _attended(self, planes: Tensor) -> Tensor:
        attention: nn.Module = self.attention
        if isinstance(attention, PoseAttention):
            return attention.attend_slices(planes, self.rows, len(self.relative))
        return attend_gathered(attention, planes, self.group.order, self.rows, len(self.relative))
