"""Co-attention inside the group convolution, before the sum over relative poses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor, nn

from coattend.functional import slice_attentive_conv2d
from coattend.functional.convolution import AttendSlices
from coattend.functional.filter_bank import slice_filters
from coattend.functional.geometry import Size
from coattend.functional.planes import add_bias
from coattend.functional.tables import SliceTables, slice_tables
from coattend.groups import Filters, FiniteGroup
from coattend.nn._conv_base import Device, PoseConv2d
from coattend.nn.attention import PoseAttention, attend_gathered
from coattend.nn.checks import check_choice
from coattend.nn.co_attention import CoAttention, Structure
from coattend.nn.gate import SliceGate2d

if TYPE_CHECKING:
    from typing_extensions import Self


Score = Literal["co-attention", "gate"]


class SliceCoAttentiveConv2d(PoseConv2d):
    """A group convolution that attends to the responses of each filter slice on its own.

    ``y[o, g] = sum_t A_{o,t}( { sum_i x[i, g' t] * (g'.W[o, i, t]) }_{g'} )(g) + b[o]``

    - t: the relative pose, the filter's group axis; g': the output pose; the input pose they read is g' t
    - A_{o,t}: co-attention over g', one vector per output channel and slice
    - ``relative=T``: the sum is over t in T only, and so are convolution and attention
    - ``score="gate"``: ``y[o, g] = sum_t (1 - alpha[o, t, g]) z[o, t, g] + b[o]`` with the responses z of the slices,
      where :class:`SliceGate2d` computes alpha from statistics of z: the attentive group convolution of [RB20] with one
      weight per relative pose instead of one per input channel and relative pose
    - ``attention``: the :class:`CoAttention` or :class:`SliceGate2d` that is applied; another module in its place gets
      and returns responses (batch, out * |T|, group, height', width'). A CoAttention without hooks needs no gathered
      copy of them.

    Shapes: as GroupConv2d; weight (out, in, group, k, k), attention.weight (out * group, group), channel o * order + t;
    with |T| slices instead of one per element where ``relative`` is given. Gates: see :class:`GroupGate2d`.
    Differs from the paper: Eq. 10 attends after the sum. The parameter counts of the paper's DREN rows and of a-p4-CNN
    fit one attention vector per slice to the last digit, so this form is what reproduces them.

    >>> SliceCoAttentiveConv2d(10, 10, 3, group="p4")(torch.zeros(2, 10, 4, 26, 26)).shape
    torch.Size([2, 10, 4, 24, 24])
    """

    filter_on_group = True
    input_on_group = True
    attention: CoAttention | SliceGate2d
    poses: Tensor
    rows: list[int]  # see slice_tables

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
        filters: Filters = "free",
        relative: Iterable[int] | None = None,
        structure: Structure = "group",
        score: Score = "co-attention",
        *,
        device: Device = None,
        dtype: torch.dtype | None = None,
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
            filters,
            relative,
            device=device,
            dtype=dtype,
        )
        check_choice(self, "score", score, get_args(Score))
        slices = len(self.relative)
        channels = self.out_channels * slices
        if score == "gate":
            self.attention = SliceGate2d(
                channels, self.group, filters=filters, slices=slices, device=device, dtype=dtype
            )
        else:
            self.attention = CoAttention(
                channels, self.group, structure, init_std=self.init_std, device=device, dtype=dtype
            )

    def forward(self, x: Tensor) -> Tensor:
        return add_bias(self.without_bias(x), self.bias)

    def without_bias(self, x: Tensor) -> Tensor:
        """Return the output before the bias is added, for a norm that takes the bias into its mean."""
        self._check(x)
        attention: nn.Module = self.attention
        return slice_attentive_conv2d(
            x,
            self.weight,
            None,
            self.group,
            self._attention(),
            *self._arguments(),
            self.relative,
            tables=SliceTables(self._turns(), self.poses, self.rows),
            bank=self._cached_filters(x),
            in_parts=isinstance(attention, PoseAttention) and attention.is_fusible(),
        )

    def filters(self) -> Tensor:
        """See :meth:`PoseConv2d.filters`: (group * out * slices, in, k, k), one channel group per input pose."""
        return slice_filters(self.weight, self._turns(), self.poses)

    def expanded_bias(self) -> Tensor | None:
        """See :meth:`PoseConv2d.expanded_bias`."""
        return None

    @property
    def filter_groups(self) -> int:
        """See :attr:`PoseConv2d.filter_groups`: one for every pose of the input."""
        return self.groups * self.group.order

    @property
    def parameters_per_pose(self) -> tuple[str, ...]:
        """See :attr:`PoseConv2d.parameters_per_pose`."""
        of_attention = getattr(self.attention, "slice_parameters", CoAttention.slice_parameters)
        return ("weight", *(f"attention.{name}" for name in of_attention))

    def restricted(self, relative: Iterable[int]) -> Self:
        """See :meth:`PoseConv2d.restricted`; the attention of a slice goes with it."""
        layer = super().restricted(relative)
        layer.attention.channels = layer.out_channels * len(layer.relative)
        return layer

    def _selected_parameters(self, index: Tensor) -> dict[str, Tensor]:
        selected = super()._selected_parameters(index)
        for name, axis in self.attention.slice_parameters.items():
            parameter = self.attention.get_parameter(name)
            slices = parameter.unflatten(axis, (-1, len(self.relative)))
            selected[f"attention.{name}"] = slices.index_select(axis + 1, index).flatten(axis, axis + 1)
        return selected

    def _attention(self) -> Tensor | AttendSlices:
        """Return the matrices of co-attention where they say all of it, else a function."""
        attention: nn.Module = self.attention
        if not (isinstance(attention, CoAttention) and attention.is_fusible()):
            return self._attend_slices
        is_its_own = type(attention).attend_slices is CoAttention.attend_slices
        return attention.matrix() if is_its_own else self._attend_slices

    def _attend_slices(self, planes: Tensor, rows: list[int], channel_step: int) -> Tensor:
        attention: nn.Module = self.attention
        if isinstance(attention, PoseAttention):
            return attention.attend_slices(planes, rows, channel_step)
        return attend_gathered(attention, planes, self.group.order, rows, channel_step)

    def _tables(self) -> dict[str, Tensor]:
        turns, poses, self.rows = slice_tables(
            self.group, self.kernel_size, self.relative, self.out_channels, self.filter_form
        )
        return {**self._named(turns), "poses": poses}
