"""The transposed group convolution, which enlarges maps: map -> map."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from coattend.functional import group_conv_transpose2d
from coattend.functional.filter_bank import group_filters
from coattend.functional.geometry import Size
from coattend.functional.tables import GroupTables, group_tables
from coattend.functional.transposed import check_enlarges, checked_output_padding
from coattend.groups import Filters, FiniteGroup
from coattend.nn._conv_base import Device, PoseConv2d


class GroupConvTranspose2d(PoseConv2d):
    """Apply the adjoint of a group convolution, which enlarges maps by its stride: map -> map.

    ``y[o, h](u) = sum_i sum_g sum_v x[i, g](v) (g.W[i, o, g^-1 h])(u + padding - stride v) + b[o]``. With the weight
    of ``GroupConv2d(out_channels, in_channels, ...)`` and without bias it is the adjoint of that layer,
    ``<conv(y), x> = <y, transposed(x)>``. It commutes with the group at every size; ``kernel_size=2, stride=2`` doubles
    maps, as does ``kernel_size=4, stride=2, padding=1``. Only ``output_padding``, rows and columns on one side, breaks
    that: it makes the layer the adjoint of a convolution at a size at which that one is not exact.

    Shapes: (batch, in_channels, group, height, width) -> (batch, out_channels, group, height', width') with
    ``height' = (height - 1) * stride - 2 * padding + dilation * (kernel_size - 1) + 1 + output_padding``;
    weight (in, out / groups, group, k, k), or (in, out / groups, |T|, k, k) for ``relative=T``, one bias per channel.
    Differs from the paper: it has no such layer. Angles other than multiples of 90 degrees are approximate, see
    :class:`PoseConv2d`.

    >>> GroupConvTranspose2d(20, 10, 2, group="p4m", stride=2)(torch.zeros(2, 20, 8, 7, 7)).shape
    torch.Size([2, 10, 8, 14, 14])
    """

    filter_on_group = True
    input_on_group = True
    relative_table: Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        group: FiniteGroup | str,
        stride: Size = 1,
        padding: Size | str = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
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
            filters=filters,
            relative=relative,
            device=device,
            dtype=dtype,
        )
        self.output_padding = checked_output_padding(type(self).__name__, output_padding, self.geometry)

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        arguments = self.stride, self.padding, self.output_padding, self.groups, self.dilation, self.filter_form
        tables = GroupTables(self._turns(), self.relative_table, None)
        bank = None if self.relative == (0,) else self._cached_filters(x)  # which are more than those it needs
        return group_conv_transpose2d(
            x, self.weight, self.bias, self.group, *arguments, self.relative, tables=tables, bank=bank
        )

    def filters(self) -> Tensor:
        """Return the filters (in * group, out * group, k, k) of the plain transposed convolution that it computes."""
        return group_filters(self.weight, self._turns(), self.relative_table)

    @property
    def _filter_channels(self) -> tuple[int, int]:
        return self.in_channels, self.out_channels // self.groups

    @property
    def _taps_per_output(self) -> float:
        return (self.kernel_size / self.stride) ** 2

    def _check_fits(self, x: Tensor) -> None:
        check_enlarges(type(self).__name__, x, self.geometry, self.output_padding)

    def _tables(self) -> dict[str, Tensor]:
        channels = self.in_channels, self.out_channels, self.groups
        turns, relative, _ = group_tables(self.group, self.kernel_size, self.relative, *channels, self.filter_form)
        return {**self._named(turns), "relative_table": relative}

    def extra_repr(self) -> str:
        return super().extra_repr() + (f", output_padding={self.output_padding}" if self.output_padding else "")
