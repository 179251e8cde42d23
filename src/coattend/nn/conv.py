"""Group convolutions: image -> map, map -> map, map -> image."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from coattend.functional import group_conv2d, lifting_conv2d, projection_conv2d
from coattend.functional.filter_bank import lifting_filters, pose_filters, projection_filters, table_filters
from coattend.functional.geometry import Size
from coattend.functional.planes import fills_registers, reads_own_pose
from coattend.functional.pose_blocks import PoseBlocks, blocks_are_faster
from coattend.functional.tables import BlockTables, GroupTables, group_tables
from coattend.groups import Filters, FiniteGroup
from coattend.nn._conv_base import Device, PoseConv2d
from coattend.nn.attention import AttentionLayer
from coattend.nn.co_attention import CoAttention, Structure


class LiftingConv2d(PoseConv2d):
    """Correlate an image with every pose of a filter: image -> map.

    ``y[o, g] = sum_i x[i] * (g.W[o, i]) + b[o]``, [RH20] Eq. 3 for the first layer; [LI18] calls it *cycle*.

    Shapes: (batch, in_channels, height, width) -> (batch, out_channels, group, height', width');
    weight (out, in, k, k), one bias per channel.
    Differs from the paper: over ``cyclic(n)`` pose r turns filters counter-clockwise, in Eq. 3 as printed clockwise;
    for that use ``cyclic(n, clockwise=True)``, or :class:`CycleConv2d`. Angles other than multiples of 90 degrees are
    approximate, see :class:`PoseConv2d`.

    >>> LiftingConv2d(1, 10, 3, group="p4")(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10, 4, 26, 26])
    """

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
            device=device,
            dtype=dtype,
        )

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        bank = self._cached_filters(x)
        return lifting_conv2d(x, self.weight, self.bias, self.group, *self._arguments(), turns=self._turns(), bank=bank)

    def filters(self) -> Tensor:
        """See :meth:`PoseConv2d.filters`: (out * group, in, k, k)."""
        return lifting_filters(self.weight, self._turns())


class GroupConv2d(PoseConv2d):
    """Correlate a map on the group with every pose of a filter on the group: map -> map.

    ``y[o, g] = sum_i sum_h x[i, h] * (g.W[o, i, g^-1 h]) + b[o]``, [RH20] Eq. 3 and its form for mirrors
    ([CW16] P4MConvP4M); [LI18] calls it *isotonic*. With ``relative=T`` the sum is over input poses h = g t, t in T,
    only, which is as equivariant and costs |T| / order as much ([RH20] section 6, docs/restriction.md).

    Shapes: (batch, in_channels, group, height, width) -> (batch, out_channels, group, height', width');
    weight (out, in, group, k, k), or (out, in, |T|, k, k), one bias per channel.
    Differs from the paper: over ``cyclic(n)`` pose r turns filters counter-clockwise, in Eq. 3 as printed clockwise,
    which is :class:`IsotonicConv2d`; the two differ by the numbering of the poses. Angles other than multiples of
    90 degrees are approximate, see :class:`PoseConv2d`.

    >>> GroupConv2d(10, 20, 3, group="p4m")
    GroupConv2d(10, 20, kernel_size=3, stride=1, group=D4)
    """

    filter_on_group = True
    input_on_group = True
    relative_table: Tensor
    slices: Tensor
    poses: Tensor
    input_planes: Tensor
    output_planes: Tensor
    blocks: PoseBlocks
    in_blocks: bool

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

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        arguments = (*self._arguments(), self.relative)
        bank = None if reads_own_pose(self.geometry, self.relative) else self._cached_filters(x)
        return group_conv2d(x, self.weight, self.bias, self.group, *arguments, tables=self._group_tables(), bank=bank)

    def filters(self) -> Tensor:
        """See :meth:`PoseConv2d.filters`: (out * group, in * group, k, k), or, in blocks, those of the blocks."""
        return table_filters(self.weight, self._group_tables(), self.groups)

    def expanded_bias(self) -> Tensor | None:
        """See :meth:`PoseConv2d.expanded_bias`."""
        if self.bias is None or not self.in_blocks:
            return super().expanded_bias()
        return self.blocks.biases(self.bias, self.groups)

    @property
    def filter_groups(self) -> int:
        """See :attr:`PoseConv2d.filter_groups`."""
        return self.groups * (len(self.blocks.outputs) if self.in_blocks else 1)

    def _is_in_planes(self) -> bool:
        if not self.in_blocks:
            return False
        inputs = self.in_channels // self.groups * self.blocks.inputs.shape[1]
        outputs = self.out_channels // self.groups * self.blocks.outputs.shape[1]
        return fills_registers(inputs, outputs, self.filter_groups)

    def _group_tables(self) -> GroupTables:
        blocks = None
        if self.in_blocks:
            blocks = BlockTables(self.blocks, self.slices, self.poses, self.input_planes, self.output_planes)
        return GroupTables(self._turns(), self.relative_table, blocks)

    def _tables(self) -> dict[str, Tensor]:
        channels = self.in_channels, self.out_channels, self.groups
        turns, relative, blocks = group_tables(self.group, self.kernel_size, self.relative, *channels, self.filter_form)
        tables = {**self._named(turns), "relative_table": relative}
        self.in_blocks = False
        if blocks is None:
            return tables
        self.blocks = blocks.layout
        self.in_blocks = blocks_are_faster(
            self.blocks, self.in_channels // self.groups, self.out_channels // self.groups, self.kernel_size
        )
        return {
            **tables,
            "slices": blocks.slices,
            "poses": blocks.poses,
            "input_planes": blocks.input_planes,
            "output_planes": blocks.output_planes,
        }


class ProjectionConv2d(PoseConv2d):
    """Correlate each pose of a map with the filter in that pose and sum: map -> image.

    ``y[o] = sum_h A( sum_i x[i, h] * (h.W[o, i]) ) + b[o]``, [LI18]'s *decycle*, the adjoint of lifting. With
    ``attention=True``, A is co-attention over the responses of the poses before they are summed, the only point at
    which the output of this layer still has a group axis.

    Shapes: (batch, in_channels, group, height, width) -> (batch, out_channels, height', width');
    weight (out, in, k, k), one bias per channel, attention.weight (out, group).
    Differs from the paper: it does not say how attention enters a layer without an output pose; the parameter counts
    of its Table 1 imply one vector per output channel here.

    >>> ProjectionConv2d(10, 10, 4, group="p4")(torch.zeros(2, 10, 4, 4, 4)).shape
    torch.Size([2, 10, 1, 1])
    """

    input_on_group = True

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
            group,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            filters,
            device=device,
            dtype=dtype,
        )
        self.attention: AttentionLayer | None = None
        if attention:
            self.attention = CoAttention(
                self.out_channels, self.group, structure, init_std=self.init_std, device=device, dtype=dtype
            )

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        arguments, bank = (*self._arguments(), self.attention), self._cached_filters(x)
        return projection_conv2d(x, self.weight, self.bias, self.group, *arguments, turns=self._turns(), bank=bank)

    def filters(self) -> Tensor:
        """See :meth:`PoseConv2d.filters`: (out, in * group, k, k), or, before attention, (group * out, in, k, k)."""
        return (projection_filters if self.attention is None else pose_filters)(self.weight, self._turns())

    def expanded_bias(self) -> Tensor | None:
        """See :meth:`PoseConv2d.expanded_bias`."""
        return self.bias if self.attention is None else None

    @property
    def filter_groups(self) -> int:
        """See :attr:`PoseConv2d.filter_groups`: with attention one for every pose of the input."""
        return self.groups * (1 if self.attention is None else self.group.order)
