"""Group convolutions: image -> map, map -> map, map -> image.

One filter is turned through all poses of the group by gathering from tables; what remains is a plain conv2d.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from coattend.functional import blocks_are_faster, group_filters, pose_blocks, turn_filters, turned_slices
from coattend.groups import FiniteGroup, Interpolation
from coattend.nn._conv_base import PoseConv2d, batch_parts
from coattend.nn.attention import CoAttention, PoseAttention, Structure
from coattend.nn.checks import Size, check_dtype, check_image, check_map

BLOCK_BYTES = 4 * 2**20  # gathered poses that are still in the cache when the convolution reads them


class LiftingConv2d(PoseConv2d):
    """Correlate an image with every pose of a filter: image -> map.

    ``y[o, g] = sum_i x[i] * (g.W[o, i]) + b[o]``, [RH20] Eq. 3 for the first layer; [LI18] calls it *cycle*.

    Shapes: (batch, in_channels, height, width) -> (batch, out_channels, group, height', width');
    weight (out, in, k, k), one bias per channel.
    Differs from the paper: over ``cyclic(n)`` pose r turns filters counter-clockwise, in Eq. 3 as printed clockwise;
    for that use ``cyclic(n, clockwise=True)``, or :class:`CycleConv2d`. Angles other than quarter turns are
    interpolated (docs/conventions.md).

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
        interpolation: Interpolation = "bicubic",
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
        )

    def forward(self, x: Tensor) -> Tensor:
        """Lift the image onto the group."""
        check_image(self, x, self.in_channels)
        check_dtype(self, x, self.weight)
        filters = turn_filters(self.weight, self.turns).transpose(1, 2)
        return self.convolve(x, filters.flatten(0, 1), self.bias_per_pose(), poses=self.group.order)


class GroupConv2d(PoseConv2d):
    """Correlate a map on the group with every pose of a filter on the group: map -> map.

    ``y[o, g] = sum_i sum_h x[i, h] * (g.W[o, i, g^-1 h]) + b[o]``, [RH20] Eq. 3 and its form for mirrors
    ([CW16] P4MConvP4M); [LI18] calls it *isotonic*. With ``relative=T`` the sum is over input poses h = g t, t in T,
    only, which is as equivariant and costs |T| / order as much ([RH20] section 6, docs/restriction.md).

    Shapes: (batch, in_channels, group, height, width) -> (batch, out_channels, group, height', width');
    weight (out, in, group, k, k), or (out, in, |T|, k, k), one bias per channel.
    Differs from the paper: over ``cyclic(n)`` pose r turns filters counter-clockwise, in Eq. 3 as printed clockwise,
    which is :class:`IsotonicConv2d`; numbering the poses the other way round makes one of the other. Angles other than
    quarter turns are interpolated (docs/conventions.md).

    >>> GroupConv2d(10, 20, 3, group="p4m")
    GroupConv2d(D4, 10 -> 20, kernel=3)
    """

    filter_on_group = True
    input_on_group = True
    relative_table: Tensor
    poses: Tensor
    slices: Tensor
    input_planes: Tensor
    output_planes: Tensor

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

    def forward(self, x: Tensor) -> Tensor:
        """Convolve over positions and poses."""
        check_map(self, x, self.in_channels, self.group.order)
        check_dtype(self, x, self.weight)
        if self.in_blocks:
            return self._convolve_blocks(x)
        filters = group_filters(self.whole_weight(), self.turns, self.relative_table).flatten(2, 3).flatten(0, 1)
        return self.convolve(x, filters, self.bias_per_pose(), poses=self.group.order)

    def whole_weight(self) -> Tensor:
        """The filter on the whole group, zero for relative poses that are left out: (out, in, group, k, k)."""
        if not self.is_restricted:
            return self.weight
        whole = self.weight.new_zeros(*self.weight.shape[:2], self.group.order, *self.weight.shape[3:])
        return whole.index_copy(2, torch.tensor(self.relative, device=self.weight.device), self.weight)

    def block_filters(self) -> Tensor:
        """The filters of a restricted layer: blocks of poses as channel groups of one plain convolution."""
        return self.blocks.filters(turned_slices(self.weight, self.turns, self.slices, self.poses), self.groups)

    def block_biases(self) -> Tensor | None:
        """One bias per plane that the blocks write."""
        return None if self.bias is None else self.blocks.biases(self.bias, self.groups)

    def _tables(self) -> dict[str, Tensor]:
        tables = {**super()._tables(), "relative_table": torch.tensor(self.group.relative)}
        self.in_blocks = False
        if not self.is_restricted:
            return tables
        self.blocks = pose_blocks(self.group, self.relative)
        self.in_blocks = blocks_are_faster(
            self.blocks, self.in_channels // self.groups, self.out_channels // self.groups, self.kernel_size
        )
        poses = self.blocks.outputs[:, :, None].expand(-1, -1, len(self.relative))
        return {
            **tables,
            "poses": poses,
            "slices": self.blocks.slices.expand_as(poses),
            "input_planes": self.blocks.input_planes(self.in_channels, self.groups),
            "output_planes": self.blocks.output_planes(self.out_channels, self.groups),
        }

    def _convolve_blocks(self, x: Tensor) -> Tensor:
        filters, biases = self.block_filters(), self.block_biases()
        groups, shape = len(self.blocks.outputs) * self.groups, (self.out_channels, self.group.order)
        image_bytes = len(self.input_planes) * x.shape[-2:].numel() * x.element_size()
        parts = []
        for part in batch_parts(x.flatten(1, 2), image_bytes, BLOCK_BYTES):
            planes = self.convolve(part.index_select(1, self.input_planes), filters, biases, groups)
            parts.append(planes.index_select(1, self.output_planes).unflatten(1, shape))
        return torch.cat(parts) if len(parts) > 1 else parts[0]


class ProjectionConv2d(PoseConv2d):
    """Correlate each pose of a map with the filter in that pose and sum: map -> image.

    ``y[o] = sum_s A( sum_i x[i, s] * (s.W[o, i]) ) + b[o]``, [LI18]'s *decycle*, the adjoint of lifting. With
    ``attention=True``, A is co-attention over the per-pose responses before they are summed; it is the only place
    where the output of this layer still has a group axis to attend along.

    Shapes: (batch, in_channels, group, height, width) -> (batch, out_channels, height', width');
    weight (out, in, k, k), one bias per channel, attention.weight (out, group).
    Differs from the paper: it does not say how attention enters a layer without an output pose; the parameter counts
    of its Table 1 ask for one vector per output channel here.

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
        interpolation: Interpolation = "bicubic",
        attention: bool = False,
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
        )
        self.attention: PoseAttention | None = (
            CoAttention(self.out_channels, self.group, structure, init_std=self.init_std) if attention else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """Project the map onto the plane."""
        check_map(self, x, self.in_channels, self.group.order)
        check_dtype(self, x, self.weight)
        poses = turn_filters(self.weight, self.turns)
        if self.attention is None:
            return self.convolve(x, poses.flatten(1, 2), self.bias)
        # One convolution per pose, run as channel groups of a single one: hence the pose-major order.
        filters = poses.permute(2, 0, 1, 3, 4).flatten(0, 1)
        pose_major = self.convolve(x.transpose(1, 2).flatten(1, 2), filters, None, self.group.order * self.groups)
        responses = pose_major.unflatten(1, (self.group.order, self.out_channels)).transpose(1, 2)
        y = self.attention(responses).sum(dim=2)
        return y if self.bias is None else y + self.bias[:, None, None]
