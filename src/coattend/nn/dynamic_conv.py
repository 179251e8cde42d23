"""Group convolution with filters that are generated from the features at each position."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from coattend.functional.dynamic import ContextNorm, filter_positions, generated_filters, generating_bank
from coattend.functional.geometry import Size
from coattend.functional.tables import Turns, turn_tables
from coattend.groups import Filters, FiniteGroup, filter_rings, get_group
from coattend.nn._conv_base import Device
from coattend.nn.checks import check_dtype, check_integer, check_map, check_planar, check_size
from coattend.nn.conv import GroupConv2d
from coattend.nn.hooks import has_hooks
from coattend.nn.norm import GroupGroupNorm2d
from coattend.nn.tables import TabledModule


class DynamicGroupConv2d(TabledModule):
    """Correlate each position with a filter of its own, generated from the features there: map -> map.

    ``y[c, g](u) = sum_d kappa[s(c), g^-1 d, g](u) v[c, g](u + d)`` with

    - ``v = V *_G x`` and ``z = ReLU(norm(Z *_G x))``, 1x1 group convolutions; the norm is per image and channel
    - ``kappa[s, d, g](u) = sum_m weight[s, m, d] z[m, g](u) + bias[s, d]``, the filter that ``slices`` blocks of
      channels share

    The filter is generated in the pose of the features and turns with it, which makes the layer equivariant. It is
    attention inside the convolution, future work in [RH20] section 6, in the form of He et al., "Efficient
    Equivariant Network" (2021); with ``filters="steerable"`` coefficients of a basis are generated instead of taps, for
    C8 and larger groups. ``generated=False`` is the same layer with constant filters, ``kappa = weight``.

    Shapes: (batch, in_channels, group, height, width) -> (batch, out_channels, group, height, width);
    value.weight (out, in, group, 1, 1), context.weight (hidden, in, group, 1, 1), norm.weight and norm.bias (hidden,),
    weight (slices, hidden, k, k), bias (slices, k, k).
    Differs from the published code: its norm has a scale and a shift per channel and pose, with which the layer is not
    equivariant; here the poses share them.

    >>> layer = DynamicGroupConv2d(16, 16, 5, group="p4", slices=2)
    >>> layer(torch.zeros(2, 16, 4, 14, 14)).shape, sum(p.numel() for p in layer.parameters())
    (torch.Size([2, 16, 4, 14, 14]), 2930)
    """

    turns: Tensor
    stride = 1
    input_on_group = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        group: FiniteGroup | str,
        slices: int = 1,
        hidden: int | None = None,
        filters: Filters = "free",
        generated: bool = True,
        *,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self.in_channels = check_integer(self, "in_channels", in_channels, 1)
        self.out_channels = check_integer(self, "out_channels", out_channels, 1)
        self.kernel_size = check_size(self, "kernel_size", kernel_size, 1)
        self.slices = check_integer(self, "slices", slices, 1)
        self.hidden = check_integer(self, "hidden", in_channels if hidden is None else hidden, 1)
        self.filter_form: Filters = filters
        self.generated = generated
        if self.kernel_size % 2 == 0:
            raise ValueError(f"{name} expects an odd kernel_size, so that maps keep their size, got {kernel_size!r}.")
        if self.out_channels % self.slices:
            raise ValueError(
                f"{name} splits out_channels={self.out_channels} into slices={self.slices} of equal size; pass slices "
                "that divide out_channels."
            )
        self.group = get_group(group)
        check_planar(self, self.group)
        rings = filter_rings(filters, self.kernel_size)
        taps = (self.kernel_size, self.kernel_size) if rings is None else (rings.size,)
        self.coefficient_scale = 1.0 if rings is None else self.kernel_size / math.sqrt(rings.functions)
        self.value = GroupConv2d(
            self.in_channels, self.out_channels, 1, self.group, bias=False, device=device, dtype=dtype
        )
        if generated:
            self.context = GroupConv2d(
                self.in_channels, self.hidden, 1, self.group, bias=False, device=device, dtype=dtype
            )
            self.norm = GroupGroupNorm2d(self.hidden, self.hidden, device=device, dtype=dtype)
            self.act = nn.ReLU()
        inputs = self.hidden if generated else 1
        self.weight = nn.Parameter(torch.empty(self.slices, inputs, *taps, device=device, dtype=dtype))
        bias = torch.empty(self.slices, *taps, device=device, dtype=dtype) if generated else None
        self.bias = None if bias is None else nn.Parameter(bias)
        self._make_tables(self.weight)
        self.reset_parameters()

    @property
    def init_std(self) -> float:
        """The standard deviation of new weights of the 1x1 convolutions, 1 / sqrt(fan_in)."""
        return self.value.init_std

    def reset_parameters(self, std: float | None = None) -> None:
        """Draw the weights so that maps keep their size on average, those of 1x1 convolutions from N(0, std^2).

        The bias starts at zero.
        """
        self.value.reset_parameters(std)
        if self.generated:
            self.context.reset_parameters(std)
            self.norm.reset_parameters()
        mean_square = 0.5 if self.generated else 1.0  # of z: half of a normal variable
        scale = self.coefficient_scale / self.kernel_size
        nn.init.normal_(self.weight, std=scale / math.sqrt(mean_square * self.weight.shape[1]))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        value, norm = self.value(x), self.context_norm()
        context = self._context(x, value) if norm is None else self.context(x)
        return filter_positions(value, context, self.bank(), norm)

    def filters(self, x: Tensor) -> Tensor:
        """Return the filters that are generated for a map: (batch, slices, k, k, group, height, width).

        Those of a turned map are turned filters. Constant filters have height and width 1.
        """
        self._check(x)
        kappa = generated_filters(self._context(x, x), self.bank())
        return kappa.unflatten(2, (self.kernel_size, self.kernel_size))

    def bank(self) -> Tensor:
        """Return what generates the filters in every pose, (hidden + 1, slices, k * k, group), the bias last."""
        turns = Turns(self.turns, self._buffers.get("maps"))
        if self.generated:
            return generating_bank(self.weight, self.bias, turns)
        return generating_bank(self.weight[:, :0], self.weight[:, 0], turns)

    def context_norm(self) -> ContextNorm | None:
        """Return the norm that can be computed with the filters; None if it or the ReLU is replaced or observed."""
        if not self.generated or type(self.norm) is not GroupGroupNorm2d or type(self.act) is not nn.ReLU:
            return None
        is_observed = has_hooks(self.norm) or has_hooks(self.act)
        if self.norm.num_groups != self.norm.num_channels or not self.norm.affine or is_observed:
            return None
        return ContextNorm(self.norm.weight, self.norm.bias, self.norm.eps)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, group={self.group.name}"
        text += f", slices={self.slices}, hidden={self.hidden}" if self.generated else f", slices={self.slices}"
        if not self.group.is_exact or filter_rings(self.filter_form, self.kernel_size) is not None:
            text += f", filters={self.filter_form}"
        return text if self.generated else f"{text}, generated=False"

    def _context(self, x: Tensor, like: Tensor) -> Tensor:
        """Return the map that generates the filters; without channels if they are constant."""
        if self.generated:
            return self.act(self.norm(self.context(x)))
        return like.detach()[:, :0]  # detached: an empty slice, too, would add zeros to the gradient of the map

    def _check(self, x: Tensor) -> None:
        check_map(self, x, self.in_channels, self.group.order, self.group.dimension)
        check_dtype(self, x, self.weight)

    def _tables(self) -> dict[str, Tensor]:
        moves, maps = turn_tables(self.group, self.kernel_size, self.filter_form)
        return {"turns": moves} if maps is None else {"maps": maps, "turns": moves}
