"""What all group convolutions share: geometry, parameters, and the tables that turn filters."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from coattend.functional import build_kernels, padded_conv2d
from coattend.groups import FiniteGroup, Interpolation, filter_turns, get_group
from coattend.groups.integers import whole_number
from coattend.nn.checks import Size, check_choice, check_integer, check_planar, check_size
from coattend.nn.tables import TabledModule

if TYPE_CHECKING:
    from typing_extensions import Self

PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


class PoseConv2d(TabledModule):
    """What the three convolutions share: geometry, parameters, and the tables that turn filters.

    Subclasses say whether the filter has a group axis of its own and whether the input has one to sum over.
    """

    filter_on_group: ClassVar[bool] = False
    input_on_group: ClassVar[bool] = False
    parameters_per_pose: ClassVar[tuple[str, ...]] = ("weight",)
    turns: Tensor

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
        super().__init__()
        self.in_channels = check_integer(self, "in_channels", in_channels, 1)
        self.out_channels = check_integer(self, "out_channels", out_channels, 1)
        self.kernel_size = check_size(self, "kernel_size", kernel_size, 1)
        self.stride = check_size(self, "stride", stride, 1)
        self.dilation = check_size(self, "dilation", dilation, 1)
        self.groups = check_integer(self, "groups", groups, 1)
        self.padding = self._resolved_padding(padding)
        check_choice(self, "padding_mode", padding_mode, PADDING_MODES)
        self.padding_mode = padding_mode
        self.interpolation = interpolation
        if self.in_channels % self.groups or self.out_channels % self.groups:
            raise ValueError(
                f"{type(self).__name__} splits channels into groups={self.groups}, which must divide both "
                f"in_channels={self.in_channels} and out_channels={self.out_channels}."
            )
        self.group = get_group(group)
        check_planar(self, self.group)
        self.relative = self._verified_relative(relative)
        poses = len(self.relative) or (self.group.order if self.input_on_group else 1)
        filter_in, k = self.in_channels // self.groups, self.kernel_size
        self.init_std = 1 / math.sqrt(filter_in * poses * k**2)

        filter_axis = (len(self.relative),) if self.filter_on_group else ()
        self.weight = nn.Parameter(torch.empty(self.out_channels, filter_in, *filter_axis, k, k))
        self.bias = nn.Parameter(torch.empty(self.out_channels)) if bias else None
        self._make_tables(self.weight)
        self.reset_parameters()
        build_kernels()

    @property
    def is_restricted(self) -> bool:
        """Whether the filter covers some relative poses only."""
        return 0 < len(self.relative) < self.group.order

    def restricted(self, relative: Iterable[int]) -> Self:
        """Return a copy whose filter covers ``relative`` only, with the weights it has for these relative poses."""
        kept = self._verified_relative(relative)
        absent = sorted(set(kept) - set(self.relative))
        if absent:
            raise ValueError(
                f"{type(self).__name__} has no weights for the relative poses {absent}; choose among {self.relative}."
            )
        parameters = dict(self.named_parameters())
        for name in self.parameters_per_pose:
            if name not in parameters:
                raise ValueError(
                    f"{type(self).__name__} cannot be restricted: its {name} is not a plain parameter, but computed by "
                    "a parametrization (weight or spectral norm), by pruning, or by a module put in its place; remove "
                    "it first, with torch.nn.utils.parametrize.remove_parametrizations or torch.nn.utils.prune.remove."
                )
        index = torch.tensor([self.relative.index(t) for t in kept], device=self.weight.device)
        # deepcopy takes what its memo holds for a parameter instead of copying the parameter.
        memo = {
            id(parameters[name]): nn.Parameter(values.detach(), parameters[name].requires_grad)
            for name, values in self._selected_parameters(index).items()
        }
        layer = copy.deepcopy(self, memo)
        layer.relative = kept
        layer._make_tables(layer.weight)
        return layer

    def _selected_parameters(self, index: Tensor) -> dict[str, Tensor]:
        """Return the parameters with an axis of relative poses, those at ``index`` along it."""
        return {"weight": self.weight.index_select(2, index)}

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

    def _tables(self) -> dict[str, Tensor]:
        return {"turns": filter_turns(self.group, self.kernel_size, self.interpolation, torch.float64)}

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
        given = list(relative) if isinstance(relative, Iterable) else [relative]
        poses = [t for t in map(whole_number, given) if t is not None and 0 <= t < self.group.order]
        if not given or len(set(poses)) < len(given):
            raise ValueError(
                f"{layer} expects relative to hold different elements of {self.group.name}, numbers from 0 to "
                f"{self.group.order - 1}, at least one, got {given}."
            )
        return tuple(sorted(poses))

    def _resolved_padding(self, padding: Size | str) -> int:
        reach = self.dilation * (self.kernel_size - 1)
        if padding == "valid":
            return 0
        if padding != "same":
            return check_size(self, "padding", padding, 0)
        if reach % 2 or self.stride != 1:
            raise ValueError(
                f"{type(self).__name__} cannot pad to the same size on all four sides alike with "
                f"kernel_size={self.kernel_size}, dilation={self.dilation}, stride={self.stride}; expected stride 1 "
                'and an odd kernel_size for padding="same", otherwise pass a whole number.'
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


def batch_parts(x: Tensor, image_bytes: int, most: int) -> tuple[Tensor, ...]:
    """The batch in as many parts as keep what each needs below ``most`` bytes; compilers get it whole."""
    if torch.compiler.is_compiling() or x.device.type != "cpu":
        return (x,)
    return x.split(max(1, most // max(1, image_bytes)))
