"""Attention over poses: the base class of its forms, and co-attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from coattend._registry import Registry
from coattend.functional import build_kernels
from coattend.functional.attention import (
    attend,
    attend_slices,
    attention_index,
    attention_mask,
    attention_matrix,
    plane_index,
)
from coattend.groups import FiniteGroup, get_group
from coattend.nn.checks import check_choice, check_device, check_dtype, check_integer, check_number, check_real_map
from coattend.nn.tables import TabledModule

Structure = Literal["group", "paper", "full"]
RESERVED = ("none", "output", "slice")  # what the option ``attention`` of networks means by itself

MODULE_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
GLOBAL_HOOKS = tuple(f"_global{hooks}" for hooks in MODULE_HOOKS)


class PoseAttention(TabledModule):
    """Base class of attention over poses: ``y = mask(x) * x``.

    A subclass defines :meth:`mask`. Networks, the equivariance checker, :func:`coattend.attention_masks`, the pictures
    and the exports work with every subclass. Optional methods are :meth:`matrix` for pictures, :meth:`attend_slices`
    for a faster computation, and :meth:`freeze` for an export other than that of the traced operations. A subclass that
    overrides ``mask`` or ``forward`` gets the general form of the optional methods that it does not override as well.

    Shapes: (batch, channels, group, height, width) in and out.
    """

    def __init__(
        self,
        channels: int,
        group: FiniteGroup | str,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """``device`` and ``dtype`` are those of the subclass's parameters; the base class has none."""
        super().__init__()
        self.channels = check_integer(self, "channels", channels, 1)
        self.group = get_group(group)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if _depth(cls, "mask") < _depth(cls, "forward"):
            cls.forward = PoseAttention.forward  # type: ignore[method-assign]
        newest = min(_depth(cls, "mask"), _depth(cls, "forward"))
        if newest < _depth(cls, "attend_slices"):
            cls.attend_slices = PoseAttention.attend_slices  # type: ignore[method-assign]
        if newest < _depth(cls, "freeze"):
            cls.freeze = PoseAttention.freeze  # type: ignore[method-assign]

    @property
    def is_equivariant(self) -> bool:
        """Whether the layer commutes with the group, whatever its weights."""
        return True

    def mask(self, x: Tensor) -> Tensor:
        """Return the mask of a map, in the shape of the map."""
        raise NotImplementedError(f"{type(self).__name__} does not define mask(x), which every PoseAttention needs.")

    def forward(self, x: Tensor) -> Tensor:
        """Return ``mask(x) * x``."""
        self.check(x)
        return self.mask(x) * x

    def matrix(self) -> Tensor | None:
        """Return the matrices (channels, group, group) that relate poses, or None for a form that has none."""
        return None

    def is_fusible(self) -> bool:
        """Return whether :meth:`attend_slices` may compute the result without calling the layer.

        It may not if a subclass or an assignment overrides ``mask`` or ``forward``, or if a hook is registered, which
        has to receive what goes in and out.
        """
        return (
            type(self).attend_slices is not PoseAttention.attend_slices
            and type(self).__call__ is nn.Module.__call__
            and not {"mask", "forward"} & vars(self).keys()
            and not any(getattr(self, hooks) for hooks in MODULE_HOOKS)
            and not any(getattr(nn.modules.module, hooks) for hooks in GLOBAL_HOOKS)
        )

    def attend_slices(self, planes: Tensor, rows: list[int], channel_step: int) -> Tensor:
        """Apply the layer to each slice of the filters of a convolution, and sum the slices.

        ``planes``: (batch, channels * group, height, width), that of (output channel, slice, pose) being number
        ``channel * channel_step + rows[slice * group + pose]``. Returns (batch, output channels, group, height, width).
        A faster form asks :meth:`is_fusible` first, and calls this one if the answer is no.
        """
        return attend_gathered(self, planes, self.group.order, rows, channel_step)

    def freeze(self, builder: Any, value: Any) -> Any:
        """Add the layer to the graph of a frozen network, by default the operations that it executes.

        ``builder`` is a :class:`coattend.export.graph.Builder`, ``value`` the input, a ``Value`` of ``export.value``;
        returns the output, a ``Value``.
        """
        return builder.traced(self, value)

    def check(self, x: Tensor) -> None:
        """Require a map with the layer's channels and poses, on the device of its parameters."""
        check_real_map(self, x, self.channels, self.group.order, self.group.dimension)
        for parameter in self.parameters():
            check_device(self, x, parameter)

    def extra_repr(self) -> str:
        return f"{self.channels}, group={self.group.name}"

    def _tables(self) -> dict[str, Tensor]:
        return {}


Form = TypeVar("Form", bound=type[PoseAttention])
ATTENTIONS: Registry[type[PoseAttention]] = Registry("form of attention")


def register_attention(name: str) -> Callable[[Form], Form]:
    """Return a class decorator that registers a form of attention, so that networks can be built with it by name.

    The class derives from :class:`PoseAttention` and is constructed as ``cls(channels, group=G)``.
    ``create_model("p4cnn", attention=name)`` places it after every convolution.

    Example::

        @register_attention("gate")
        class Gate(PoseAttention):
            def mask(self, x: Tensor) -> Tensor:
                return torch.sigmoid(x - x.mean(2, keepdim=True))
    """

    def register(form: Form) -> Form:
        if not (isinstance(form, type) and issubclass(form, PoseAttention)):
            raise ValueError(f"register_attention expects a subclass of PoseAttention, got {form!r}.")
        if name in RESERVED:
            raise ValueError(f"{name!r} is the name of a built-in choice of attention; choose another one.")
        ATTENTIONS.add(name, form)
        return form

    return register


def attend_gathered(module: nn.Module, planes: Tensor, order: int, rows: list[int], channel_step: int) -> Tensor:
    """Compute :meth:`PoseAttention.attend_slices` by calling a module, of any class, with the slices as channels."""
    responses = planes.index_select(1, plane_index(planes, rows, channel_step)).unflatten(1, (-1, order))
    attended: Tensor = module(responses)  # b (o t) g h w
    return attended.unflatten(1, (-1, len(rows) // order)).sum(dim=2)


def _depth(cls: type, name: str) -> int:
    """Return how many classes are between a class and the one that defines an attribute of it."""
    return next(depth for depth, base in enumerate(cls.__mro__) if name in vars(base))


class CoAttention(PoseAttention):
    """Weigh the responses of the poses relative to one another, separately for each channel and position.

    ``l[g] = sum_h x[h] A[h, g] / n``, ``mask = softmax(l) / max softmax(l)``, ``y = mask * x``.

    - x: the n responses along the group axis; A: the matrix of the channel; n: the group's order
    - ``structure="group"``: ``A[h, g] = a[g^-1 h]``, one vector ``a`` per channel, exactly equivariant to any group
    - ``structure="paper"``: the circulant blocks of [RH20] Eq. 11, for dihedral groups and C2 x Cn (for cyclic groups
      Eq. 9, the same as "group")
    - ``structure="full"``: a free matrix, the paper's A^F, which is not equivariant

    [RH20] Eqs. 6-11. Initialized as in section 4: drawn from N(0, init_std^2) like the rest of the layer, then the
    diagonal is set to init_diagonal, 1.
    Shapes: (batch, channels, group, height, width) in and out; weight (channels, group), "full": (channels, group,
    group).
    Differs from the paper: Eq. 11 does not commute with the mirrors of dihedral groups, so "group" is the default.
    Eq. 9 as printed is anti-circulant; the circulant is meant.

    >>> CoAttention(10, group="p4")
    CoAttention(10, group=C4, structure='group')
    """

    index: Tensor | None

    def __init__(
        self,
        channels: int,
        group: FiniteGroup | str,
        structure: Structure = "group",
        init_std: float = 0.05,
        init_diagonal: float = 1.0,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels, group)
        check_choice(self, "structure", structure, get_args(Structure))
        self.structure = structure
        self.init_std = check_number(self, "init_std", init_std, 0)
        self.init_diagonal = check_number(self, "init_diagonal", init_diagonal, -math.inf)
        n = self.group.order
        shape = (self.channels, n, n) if structure == "full" else (self.channels, n)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.register_buffer("index", None, persistent=False)
        self._make_tables(self.weight)
        self.reset_parameters()
        build_kernels()

    def reset_parameters(self, std: float | None = None, diagonal: float | None = None) -> None:
        """Draw from N(0, std^2), by default init_std, and set the diagonal of the matrix, by default to init_diagonal.

        With a diagonal of 0 the mask of a new layer is almost 1 for all poses; the larger the diagonal, the more the
        strongest pose stands out.
        """
        diagonal = self.init_diagonal if diagonal is None else diagonal
        nn.init.normal_(self.weight, std=self.init_std if std is None else std)
        with torch.no_grad():
            if self.structure == "full":
                self.weight.diagonal(dim1=-2, dim2=-1).fill_(diagonal)
            else:
                self.weight[:, 0].fill_(diagonal)

    @property
    def is_equivariant(self) -> bool:
        """Whether the matrix commutes with every left translation of the group, whatever its weights."""
        if self.index is None:
            return self.group.order == 1
        p = torch.tensor(self.group.product, device=self.index.device)
        return all(torch.equal(self.index[p[g][:, None], p[g]], self.index) for g in self.group.elements)

    def matrix(self) -> Tensor:
        """Return the matrices A, (channels, source pose, target pose)."""
        return self.weight if self.index is None else attention_matrix(self.weight, self.index)

    def mask(self, x: Tensor) -> Tensor:
        """Return the mask of a map, in [0, 1], the largest value along the group axis being 1."""
        self.check(x)
        return attention_mask(x, self.matrix())

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        return attend(x, self.matrix())

    def attend_slices(self, planes: Tensor, rows: list[int], channel_step: int) -> Tensor:
        """See :meth:`PoseAttention.attend_slices`; one pass that does not gather the slices."""
        if not self.is_fusible():
            return super().attend_slices(planes, rows, channel_step)
        return attend_slices(planes, self.matrix(), rows, channel_step)

    def freeze(self, builder: Any, value: Any) -> Any:
        """See :meth:`PoseAttention.freeze`; a product of small matrices and a few element-wise operations."""
        return builder.co_attention(self.matrix(), value)

    def check(self, x: Tensor) -> None:
        """Require a map with the layer's channels and poses, on the device and in the dtype of its parameters."""
        check_real_map(self, x, self.channels, self.group.order, self.group.dimension)
        check_dtype(self, x, self.weight)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, structure={self.structure!r}"

    def _tables(self) -> dict[str, Tensor]:
        if self.structure == "full":
            return {}
        return {"index": (attention_index if self.structure == "group" else paper_index)(self.group)}


def paper_index(group: FiniteGroup) -> Tensor:
    """Return the index of Eq. 11 as printed: ``[[A1, A2], [A2, A1]]`` with circulant A1, A2; Eq. 9 for a cyclic group.

    ``index[i, j] = n * (m_i xor m_j) + (r_i - r_j) mod n`` for elements numbered ``n * m + r``.
    """
    turns = _turns_per_block(group)
    mirror, r = torch.arange(group.order).div(turns, rounding_mode="floor"), torch.arange(group.order) % turns
    return turns * (mirror[:, None] ^ mirror) + (r[:, None] - r) % turns


def _turns_per_block(group: FiniteGroup) -> int:
    """Return n if the elements are n rotations in order, or n rotations and n mirrored ones: Cn, Dn or C2 x Cn."""
    product, order = group.product, group.order
    n = 1  # element 1 has the powers 0, 1, ..., n - 1
    while n < order and product[n - 1, 1] == n:
        n += 1
    if n == order:
        return n
    if order == 2 * n and product[n, n] == 0:
        conjugated = product[product[n, 1], n]
        in_blocks = (product[:n, n] == range(n, 2 * n)).all() or (product[n, :n] == range(n, 2 * n)).all()
        if in_blocks and conjugated in (1, (n - 1) % order):
            return n
    raise ValueError(
        f'structure="paper" is Eq. 11, written for n rotations and their mirror images (Cn, Dn, C2 x Cn, numbered '
        f'n * mirror + rotation), got {group.name}; structure="group" serves every group.'
    )
