"""The base class of group convolutions: geometry, parameters, and the tables that turn filters."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from coattend.functional import build_kernels
from coattend.functional.checks import checked_relative
from coattend.functional.dispatch import is_eager
from coattend.functional.geometry import Geometry, Size, check_fits, checked_geometry
from coattend.functional.layout import prefers_channels_last
from coattend.functional.planes import bank_channels_last, repeat_bias
from coattend.functional.tables import Turns, turn_tables
from coattend.groups import Filters, FiniteGroup, filter_rings, get_group
from coattend.nn.checks import check_dtype, check_image, check_integer, check_map, check_planar
from coattend.nn.tables import TabledModule

if TYPE_CHECKING:
    from typing_extensions import Self

Device = torch.device | str | None


class CachedFilters(NamedTuple):
    """Turned filters of a layer in evaluation, with the weight and the format that they were computed for."""

    weight: Tensor
    channels_last: bool
    bank: Tensor

    def suit(self, weight: Tensor, channels_last: bool) -> bool:
        """Whether a weight has the same values, however it was changed in between, and the format is the wanted one."""
        same = (self.weight.dtype, self.channels_last) == (weight.dtype, channels_last)
        return same and torch.equal(self.weight, weight)


class PoseConv2d(TabledModule):
    """Base class of group convolutions.

    A subclass defines ``forward``, :meth:`filters`, and whether its filter and its input have a group axis. Export and
    other readers use :meth:`filters`, :meth:`expanded_bias` and :attr:`filter_groups`: the plain convolution of planes
    that the layer computes.

    ``filters`` says what the weight holds and how it turns by angles that do not move pixels onto pixels
    (docs/conventions.md compares the errors):

    - ``"free"``: k x k taps, turned by the linear map that is best for plane waves
    - ``"steerable"``, or :class:`coattend.Rings`: the coefficients of a basis of smooth functions that turn by a change
      of phase, one axis ``coefficients`` instead of k x k
    - ``"bicubic"``, ``"bilinear"``: k x k taps, interpolated between neighbours

    For groups of quarter turns and flips all forms with k x k taps permute them and are the same.
    """

    filter_on_group: ClassVar[bool] = False
    input_on_group: ClassVar[bool] = False
    turns: Tensor
    _cache: CachedFilters | None = None

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
        super().__init__()
        name = type(self).__name__
        self.in_channels = check_integer(self, "in_channels", in_channels, 1)
        self.out_channels = check_integer(self, "out_channels", out_channels, 1)
        geometry = checked_geometry(name, kernel_size, stride, padding, dilation, groups, padding_mode)
        self.kernel_size, self.stride, self.padding, self.dilation, self.groups, self.padding_mode = geometry
        self.filter_form: Filters = filters
        if self.in_channels % self.groups or self.out_channels % self.groups:
            raise ValueError(
                f"{name} splits channels into groups={self.groups}, which must divide both "
                f"in_channels={self.in_channels} and out_channels={self.out_channels}."
            )
        self.group = get_group(group)
        check_planar(self, self.group)
        self.relative = self._checked_relative(relative)
        poses = len(self.relative) or (self.group.order if self.input_on_group else 1)
        k = self.kernel_size
        self.init_std = 1 / math.sqrt(self.in_channels // self.groups * poses * self._taps_per_output)

        filter_axis = (len(self.relative),) if self.filter_on_group else ()
        rings = filter_rings(filters, k)
        shape = (*self._filter_channels, *filter_axis, *((k, k) if rings is None else (rings.size,)))
        self.coefficient_scale = 1.0 if rings is None else k / math.sqrt(rings.functions)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(self.out_channels, device=device, dtype=dtype)) if bias else None
        self._make_tables(self.weight)
        self.reset_parameters()
        build_kernels()

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "filter_form" in state:
            super().__setstate__(state)
            return
        # A layer pickled before filters could be chosen: it interpolates, and had tables of another form.
        buffers = {name: value for name, value in state["_buffers"].items() if name != "turns"}
        new = {"filter_form": state["interpolation"], "coefficient_scale": 1.0, "_buffers": buffers}
        super().__setstate__({**state, **new})
        self._make_tables(self.weight)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_cache"}

    def train(self, mode: bool = True) -> Self:
        """See ``torch.nn.Module.train``; turned filters are kept in evaluation only."""
        if mode:
            self._cache = None
        return super().train(mode)

    def filters(self) -> Tensor:
        """Return the turned filters of the plain convolution that the layer applies to the planes of its input."""
        raise NotImplementedError(f"{type(self).__name__} does not define filters(), which every PoseConv2d needs.")

    def expanded_bias(self) -> Tensor | None:
        """Return one bias per filter of :meth:`filters`; None without bias, or if it is added after attention."""
        return repeat_bias(self.bias, self.group.order)

    def dense_filters(self, x: Tensor) -> Tensor:
        """Return :meth:`filters` for this input; those kept for evaluation, if there are any."""
        self._check(x)
        bank = self._cached_filters(x)
        return self.filters() if bank is None else bank

    @property
    def filter_groups(self) -> int:
        """The number of channel groups of the plain convolution with :meth:`filters`."""
        return self.groups

    @property
    def _filter_channels(self) -> tuple[int, int]:
        """The first two axes of the weight."""
        return self.out_channels, self.in_channels // self.groups

    @property
    def _taps_per_output(self) -> float:
        """How many taps of a filter contribute to a position of the output, on average."""
        return self.kernel_size**2

    @property
    def parameters_per_pose(self) -> tuple[str, ...]:
        """The names of the parameters with an axis of relative poses."""
        return ("weight",)

    @property
    def geometry(self) -> Geometry:
        """The geometry of the layer."""
        return Geometry(self.kernel_size, self.stride, self.padding, self.dilation, self.groups, self.padding_mode)

    @property
    def is_restricted(self) -> bool:
        """Whether the filter covers only some of the relative poses."""
        return 0 < len(self.relative) < self.group.order

    @property
    def is_steerable(self) -> bool:
        """Whether the weight holds coefficients of steerable filters instead of k x k taps."""
        return filter_rings(self.filter_form, self.kernel_size) is not None

    def restricted(self, relative: Iterable[int]) -> Self:
        """Return a copy whose filter covers ``relative`` only, with the weights it has for these relative poses."""
        poses = self._checked_relative(relative)
        absent = sorted(set(poses) - set(self.relative))
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
        index = torch.tensor([self.relative.index(t) for t in poses], device=self.weight.device)
        # deepcopy takes what its memo holds for a parameter instead of copying the parameter.
        memo = {
            id(parameters[name]): nn.Parameter(values.detach(), parameters[name].requires_grad)
            for name, values in self._selected_parameters(index).items()
        }
        layer = copy.deepcopy(self, memo)
        layer.relative = poses
        layer._make_tables(layer.weight)
        return layer

    def _selected_parameters(self, index: Tensor) -> dict[str, Tensor]:
        """Return the parameters with an axis of relative poses, those at ``index`` along it."""
        return {"weight": self.weight.index_select(2, index)}

    def reset_parameters(self, std: float | None = None) -> None:
        """Draw the weights from N(0, std^2), by default 1 / fan_in, and set the bias to zero.

        Coefficients of steerable filters get the variance with which the filters have the mean norm of such weights.
        """
        std = self.init_std if std is None else std
        nn.init.normal_(self.weight, std=std * self.coefficient_scale)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def extra_repr(self) -> str:
        text = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"group={self.group.name}"
        )
        for name, default in (("padding", 0), ("dilation", 1), ("groups", 1), ("padding_mode", "zeros")):
            if getattr(self, name) != default:
                text += f", {name}={getattr(self, name)}"
        if self.is_restricted:
            text += f", relative={self.relative}"
        if self.bias is None:
            text += ", bias=False"
        return text if self.group.is_exact and not self.is_steerable else f"{text}, filters={self.filter_form}"

    def _arguments(self) -> tuple[int, int, int, int, str, Filters]:
        """Return the arguments of the functional form that follow the group."""
        return self.stride, self.padding, self.dilation, self.groups, self.padding_mode, self.filter_form

    def _cached_filters(self, x: Tensor) -> Tensor | None:
        """Return the turned filters for evaluation without gradients, kept until the weight changes; else None.

        To compare the weight takes a fraction of the time of turning it, which small images and batches would not make
        up for. On a GPU a comparison would wait for the device.
        """
        weight = self.weight
        plain = all(type(tensor) in (Tensor, nn.Parameter) for tensor in (x, weight))
        if self.training or torch.is_grad_enabled() or not plain or weight.device.type != "cpu" or not is_eager(weight):
            return None
        channels_last, cache = prefers_channels_last(x) and not self._is_in_planes(), self._cache
        if cache is None or not cache.suit(weight, channels_last):
            with torch.autocast(weight.device.type, enabled=False):  # which would keep filters of another type
                bank = self.filters()
            bank = bank_channels_last(bank) if channels_last else bank.contiguous()
            self._cache = cache = CachedFilters(weight.detach().clone(), channels_last, bank)
        return cache.bank

    def _is_in_planes(self) -> bool:
        """Return whether the convolution is computed in planes whatever format is preferred."""
        return False

    def _check(self, x: Tensor) -> None:
        """Require an input of the layer's shape, device and dtype that the kernel fits."""
        if self.input_on_group:
            check_map(self, x, self.in_channels, self.group.order, self.group.dimension)
        else:
            check_image(self, x, self.in_channels, self.group.dimension)
        check_dtype(self, x, self.weight)
        self._check_fits(x)

    def _check_fits(self, x: Tensor) -> None:
        """Require an input of a size that the geometry admits."""
        check_fits(type(self).__name__, x, self.geometry)

    def _tables(self) -> dict[str, Tensor]:
        return self._named(turn_tables(self.group, self.kernel_size, self.filter_form))

    @staticmethod
    def _named(turns: Turns) -> dict[str, Tensor]:
        return {"turns": turns.moves} if turns.maps is None else {"maps": turns.maps, "turns": turns.moves}

    def _turns(self) -> Turns:
        return Turns(self.turns, self._buffers.get("maps"))

    def _checked_relative(self, relative: Iterable[int] | None) -> tuple[int, ...]:
        name = type(self).__name__
        if self.filter_on_group:
            return tuple(sorted(checked_relative(name, self.group, relative)))
        if relative is not None:
            raise ValueError(
                f"{name} has no relative poses to choose from: its filter is one image, and every pose of it is "
                "needed for equivariance; restrict GroupConv2d or SliceCoAttentiveConv2d."
            )
        return ()
