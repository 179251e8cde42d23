"""Group convolutions: image -> map, map -> map, map -> image.

One filter is turned through all poses of the group by gathering from tables; what remains is a plain conv2d.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from coattend.functional import (
    blocks_pay,
    group_filters,
    padded_conv2d,
    pose_blocks,
    turn_filters,
    turned_slices,
)
from coattend.groups import FiniteGroup, Interpolation, filter_turns, get_group
from coattend.nn.attention import CoAttention, Structure
from coattend.nn.checks import check_choice, check_dtype, check_image, check_integer, check_map

PADDING_MODES = ("zeros", "reflect", "replicate", "circular")
BLOCK_BYTES = 4 * 2**20  # gathered poses that are still in the cache when the convolution reads them


class PoseConv2d(nn.Module):
    """What the three convolutions share: geometry, parameters, and the tables that turn filters.

    Subclasses say whether the filter has a group axis of its own and whether the input has one to sum over.
    """

    filter_on_group: ClassVar[bool] = False
    input_on_group: ClassVar[bool] = False
    turns: Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        group: FiniteGroup | str,
        stride: int = 1,
        padding: int | str = 0,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        interpolation: Interpolation = "bicubic",
        relative: Iterable[int] | None = None,
    ) -> None:
        super().__init__()
        layer = type(self).__name__
        self.in_channels = check_integer(layer, "in_channels", in_channels, 1)
        self.out_channels = check_integer(layer, "out_channels", out_channels, 1)
        self.kernel_size = check_integer(layer, "kernel_size", kernel_size, 1)
        self.stride = check_integer(layer, "stride", stride, 1)
        self.dilation = check_integer(layer, "dilation", dilation, 1)
        self.groups = check_integer(layer, "groups", groups, 1)
        self.padding = self._resolved_padding(padding)
        check_choice(layer, "padding_mode", padding_mode, PADDING_MODES)
        self.padding_mode = padding_mode
        self.interpolation = interpolation
        if in_channels % groups or out_channels % groups:
            raise ValueError(
                f"{layer} splits channels into groups={groups}, which must divide both in_channels={in_channels} "
                f"and out_channels={out_channels}."
            )
        self.group = get_group(group)
        self.relative = self._verified_relative(relative)
        poses = len(self.relative) or (self.group.order if self.input_on_group else 1)
        self.init_std = 1 / math.sqrt(in_channels // groups * poses * kernel_size**2)

        filter_axis = (len(self.relative),) if self.filter_on_group else ()
        self.weight = nn.Parameter(
            torch.empty(out_channels, in_channels // groups, *filter_axis, kernel_size, kernel_size)
        )
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.register_buffer("turns", filter_turns(self.group, kernel_size, interpolation), persistent=False)
        self._make_tables()
        self.reset_parameters()

    @property
    def is_restricted(self) -> bool:
        """Whether the filter covers some relative poses only."""
        return 0 < len(self.relative) < self.group.order

    def restrict(self, relative: Iterable[int]) -> None:
        """Cut the filter down to some of the relative poses it has; what remains keeps its weights."""
        kept = self._verified_relative(relative)
        absent = sorted(set(kept) - set(self.relative))
        if absent:
            raise ValueError(
                f"{type(self).__name__} has no weights for the relative poses {absent}; choose among {self.relative}."
            )
        cut = self.cut({name: p.detach() for name, p in self.named_parameters()}, kept)
        for name, values in cut.items():
            owner, _, last = name.rpartition(".")
            old = getattr(self.get_submodule(owner), last)
            setattr(self.get_submodule(owner), last, nn.Parameter(values.clone(), requires_grad=old.requires_grad))
        self.relative = kept
        self._make_tables()

    def cut(self, values: Mapping[str, Tensor], relative: Sequence[int]) -> dict[str, Tensor]:
        """Of tensors shaped like the parameters, the part of those that shrink if only ``relative`` is kept."""
        return {"weight": values["weight"].index_select(2, self._places(relative))}

    def reset_parameters(self, std: float | None = None) -> None:
        """Draw the weights from N(0, std^2), by default 1 / fan_in, and set the bias to zero."""
        nn.init.normal_(self.weight, std=self.init_std if std is None else std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def convolve(
        self, x: Tensor, filters: Tensor, bias: Tensor | None, groups: int | None = None, poses: int | None = None
    ) -> Tensor:
        """Apply a bank of turned filters with this layer's geometry: onto a map with ``poses``, or onto an image."""
        self._check_fits(x)
        return padded_conv2d(
            x,
            filters,
            bias,
            self.stride,
            self.padding,
            self.dilation,
            self.groups if groups is None else groups,
            self.padding_mode,
            poses,
        )

    def bias_per_pose(self) -> Tensor | None:
        """The bias repeated for all poses of each channel."""
        return None if self.bias is None else self.bias.repeat_interleave(self.group.order)

    def extra_repr(self) -> str:
        """Print the layer as a signature."""
        text = f"{self.group.name}, {self.in_channels} -> {self.out_channels}, kernel={self.kernel_size}"
        for name, usual in (
            ("stride", 1),
            ("padding", 0),
            ("dilation", 1),
            ("groups", 1),
            ("padding_mode", "zeros"),
        ):
            if getattr(self, name) != usual:
                text += f", {name}={getattr(self, name)}"
        if self.is_restricted:
            text += f", relative={self.relative}"
        if self.bias is None:
            text += ", bias=False"
        return text if self.group.is_exact else f"{text}, interpolation={self.interpolation}"

    def _make_tables(self) -> None:
        """Index tables that depend on the relative poses, as non-persistent buffers."""

    def _places(self, relative: Sequence[int]) -> Tensor:
        """Where relative poses stand among those of this layer."""
        return torch.tensor([self.relative.index(t) for t in relative], device=self.weight.device)

    def _verified_relative(self, relative: Iterable[int] | None) -> tuple[int, ...]:
        layer = type(self).__name__
        if not self.filter_on_group:
            if relative is not None:
                raise ValueError(
                    f"{layer} has no relative poses to choose from: its filter is one image, and every pose of it is "
                    "needed for equivariance; restrict GroupConv2d or SliceCoAttentiveConv2d."
                )
            return ()
        if relative is None:
            return tuple(self.group.elements)
        given = [relative] if isinstance(relative, int) else list(relative)
        kept = tuple(sorted(set(given)))
        if not kept or len(kept) < len(given) or not set(kept) <= set(self.group.elements):
            raise ValueError(
                f"{layer} expects relative to hold different elements of {self.group.name}, numbers from 0 to "
                f"{self.group.order - 1}, at least one, got {given}."
            )
        return kept

    def _resolved_padding(self, padding: int | str) -> int:
        layer, reach = type(self).__name__, self.dilation * (self.kernel_size - 1)
        if padding == "valid":
            return 0
        if padding != "same":
            return check_integer(layer, "padding", padding, 0)
        if reach % 2 or self.stride != 1:
            raise ValueError(
                f"{layer} cannot pad to the same size on all four sides alike with kernel_size={self.kernel_size}, "
                f"dilation={self.dilation}, stride={self.stride}; expected stride 1 and an odd kernel_size for "
                'padding="same", otherwise pass a whole number.'
            )
        return reach // 2

    def _check_fits(self, x: Tensor) -> None:
        layer, extent = type(self).__name__, self.dilation * (self.kernel_size - 1) + 1
        height, width = x.shape[-2:]
        if min(height, width) + 2 * self.padding < extent:
            raise ValueError(
                f"{layer} has a kernel that covers {extent} pixels, larger than the padded image of "
                f"{height + 2 * self.padding} x {width + 2 * self.padding}; pass larger images or more padding."
            )
        most = {
            "zeros": None,
            "replicate": None,
            "reflect": min(height, width) - 1,
            "circular": min(height, width),
        }
        limit = most[self.padding_mode]
        if limit is not None and self.padding > limit:
            raise ValueError(
                f"{layer} pads {self.padding} pixels in mode {self.padding_mode!r}, at most {limit} are possible for "
                f"an image of {height} x {width}; pad less or use padding_mode='zeros'."
            )


class LiftingConv2d(PoseConv2d):
    """Correlate an image with every pose of a filter: image -> map.

    ``y[o, g] = sum_i x[i] * (g.W[o, i]) + b[o]``, [RH20] Eq. 3 for the first layer; [LI18] calls it *cycle*.

    Shapes: (batch, in_channels, height, width) -> (batch, out_channels, group, height', width');
    weight (out, in, k, k), one bias per channel.
    Differs from the paper: nothing; other angles than quarter turns are interpolated (docs/conventions.md).

    >>> LiftingConv2d(1, 10, 3, group="p4")(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10, 4, 26, 26])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Lift the image onto the group."""
        check_image("LiftingConv2d", x, self.in_channels)
        check_dtype("LiftingConv2d", x, self.weight)
        filters = turn_filters(self.weight, self.turns).transpose(1, 2)
        return self.convolve(x, filters.flatten(0, 1), self.bias_per_pose(), poses=self.group.order)


class GroupConv2d(PoseConv2d):
    """Correlate a map on the group with every pose of a filter on the group: map -> map.

    ``y[o, g] = sum_i sum_h x[i, h] * (g.W[o, i, g^-1 h]) + b[o]``, [RH20] Eq. 3 and its form for mirrors
    ([CW16] P4MConvP4M); [LI18] calls it *isotonic*. With ``relative=T`` the sum is over input poses h = g t, t in T,
    only, which is as equivariant and costs |T| / order as much ([RH20] section 6, docs/restriction.md).

    Shapes: (batch, in_channels, group, height, width) -> (batch, out_channels, group, height', width');
    weight (out, in, group, k, k), or (out, in, |T|, k, k), one bias per channel.
    Differs from the paper: nothing; other angles than quarter turns are interpolated (docs/conventions.md).

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

    def forward(self, x: Tensor) -> Tensor:
        """Convolve over positions and poses."""
        check_map("GroupConv2d", x, self.in_channels, self.group.order)
        check_dtype("GroupConv2d", x, self.weight)
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

    def _make_tables(self) -> None:
        self.register_buffer("relative_table", torch.tensor(self.group.relative), persistent=False)
        self.in_blocks = False
        if not self.is_restricted:
            return
        self.blocks = pose_blocks(self.group, self.relative)
        self.in_blocks = blocks_pay(
            self.blocks, self.in_channels // self.groups, self.out_channels // self.groups, self.kernel_size
        )
        poses = self.blocks.outputs[:, :, None].expand(-1, -1, len(self.relative))
        for name, table in (
            ("poses", poses),
            ("slices", self.blocks.slices.expand_as(poses)),
            ("input_planes", self.blocks.input_planes(self.in_channels, self.groups)),
            ("output_planes", self.blocks.output_planes(self.out_channels, self.groups)),
        ):
            self.register_buffer(name, table, persistent=False)

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
        self, *geometry: Any, attention: bool = False, structure: Structure = "group", **named_geometry: Any
    ) -> None:
        super().__init__(*geometry, **named_geometry)
        self.attention = (
            CoAttention(self.out_channels, self.group, structure, init_std=self.init_std) if attention else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """Project the map onto the plane."""
        check_map("ProjectionConv2d", x, self.in_channels, self.group.order)
        check_dtype("ProjectionConv2d", x, self.weight)
        poses = turn_filters(self.weight, self.turns)
        if self.attention is None:
            return self.convolve(x, poses.flatten(1, 2), self.bias)
        # One convolution per pose, run as channel groups of a single one: hence the pose-major order.
        filters = poses.permute(2, 0, 1, 3, 4).flatten(0, 1)
        pose_major = self.convolve(x.transpose(1, 2).flatten(1, 2), filters, None, self.group.order * self.groups)
        responses = pose_major.unflatten(1, (self.group.order, self.out_channels)).transpose(1, 2)
        y = self.attention(responses).sum(dim=2)
        return y if self.bias is None else y + self.bias[:, None, None]


def batch_parts(x: Tensor, image_bytes: int, most: int) -> tuple[Tensor, ...]:
    """The batch in as many parts as keep what each needs below ``most`` bytes; compilers get it whole."""
    if torch.compiler.is_compiling() or x.device.type != "cpu":
        return (x,)
    return x.split(max(1, most // max(1, image_bytes)))
