"""The base classes of attention, and a registry of its forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from coattend._registry import Registry
from coattend.functional.attention import plane_index
from coattend.groups import FiniteGroup, get_group
from coattend.nn.checks import check_device, check_image, check_integer, check_real_map
from coattend.nn.hooks import has_hooks
from coattend.nn.tables import TabledModule

RESERVED = ("none", "output", "slice", "slice_gate")  # what the option ``attention`` of networks means by itself


class AttentionLayer(TabledModule):
    """Base class of attention of every form: a layer that returns what it is given, weighed.

    Networks, the equivariance checker, optimizers and the exports work with every subclass. A subclass defines
    ``forward``; one that multiplies its input by a mask derives from :class:`PoseAttention` instead. Optional methods
    are :meth:`shares` and :meth:`matrix` for pictures, and :meth:`freeze` for an export other than that of the traced
    operations.

    - input_on_group: whether the input is a map or an image
    - on_input: whether networks place the form on the input of each convolution instead of its output
    - options: the options of networks, fields of ``coattend.models.Blocks``, that the constructor takes as keywords

    Shapes: (batch, channels, group, height, width) in and out, or without a group axis.
    """

    input_on_group: ClassVar[bool] = True
    on_input: ClassVar[bool] = False
    options: ClassVar[tuple[str, ...]] = ()

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

    @classmethod
    def for_images(cls, channels: int, group: FiniteGroup | str, **options: Any) -> AttentionLayer | None:
        """Return the layer for images that a form has for the input of a lifting convolution, or None."""
        return None

    @property
    def is_equivariant(self) -> bool:
        """Whether the layer commutes with the group, whatever its weights."""
        return True

    @property
    def is_patched(self) -> bool:
        """Whether an assignment to the layer itself overrides ``mask`` or ``forward`` of its class."""
        return bool({"mask", "forward"} & vars(self).keys())

    def matrix(self) -> Tensor | None:
        """Return the matrices (channels, group, group) that relate poses, or None for a form that has none."""
        return None

    def shares(self, x: Tensor) -> Tensor | None:
        """Return how much attention each response of a map gets, in the shape of the map; None if that is unknown.

        For a form with a mask it is the mask. Pictures show it.
        """
        return None

    def freeze(self, builder: Any, value: Any) -> Any:
        """Add the layer to the graph of a frozen network, by default the operations that it executes.

        ``builder`` is a :class:`coattend.export.graph.Builder`, ``value`` the input, a ``Value`` of the same module;
        returns the output, a ``Value``.
        """
        return builder.traced(self, value)

    def check(self, x: Tensor) -> None:
        """Require an input with the layer's channels and poses, on the device of its parameters."""
        if self.input_on_group:
            check_real_map(self, x, self.channels, self.group.order, self.group.dimension)
        else:
            check_image(self, x, self.channels, self.group.dimension)
        for parameter in self.parameters():
            check_device(self, x, parameter)

    def extra_repr(self) -> str:
        return f"{self.channels}, group={self.group.name}"

    def _tables(self) -> dict[str, Tensor]:
        return {}


class PoseAttention(AttentionLayer):
    """Base class of attention by a mask over poses: ``y = mask(x) * x``.

    A subclass defines :meth:`mask`. :func:`coattend.attention_masks` and the pictures work with every subclass. An
    optional method besides those of :class:`AttentionLayer` is :meth:`attend_slices`, for a faster computation. A
    subclass that overrides ``mask`` or ``forward`` gets the general form of the optional methods that it does not
    override as well.

    Shapes: (batch, channels, group, height, width) in and out.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if _depth(cls, "mask") < _depth(cls, "forward"):
            cls.forward = PoseAttention.forward  # type: ignore[method-assign]
        newest = min(_depth(cls, "mask"), _depth(cls, "forward"))
        if newest < _depth(cls, "attend_slices"):
            cls.attend_slices = PoseAttention.attend_slices  # type: ignore[method-assign]
        if newest < _depth(cls, "freeze"):
            cls.freeze = AttentionLayer.freeze  # type: ignore[method-assign]

    def mask(self, x: Tensor) -> Tensor:
        """Return the mask of a map, in the shape of the map."""
        raise NotImplementedError(f"{type(self).__name__} does not define mask(x), which every PoseAttention needs.")

    def shares(self, x: Tensor) -> Tensor:
        """Return the mask."""
        return self.mask(x)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``mask(x) * x``."""
        self.check(x)
        return self.mask(x) * x

    def is_fusible(self) -> bool:
        """Return whether :meth:`attend_slices` may compute the result without calling the layer.

        It may not if a subclass or an assignment overrides ``mask`` or ``forward``, or if a hook is registered, which
        has to receive what goes in and out.
        """
        return (
            type(self).attend_slices is not PoseAttention.attend_slices
            and type(self).__call__ is nn.Module.__call__
            and not self.is_patched
            and not has_hooks(self)
        )

    def attend_slices(self, planes: Tensor, rows: list[int], channel_step: int) -> Tensor:
        """Apply the layer to each slice of the filters of a convolution, and sum the slices.

        ``planes``: (batch, channels * group, height, width), that of (output channel, slice, pose) being number
        ``channel * channel_step + rows[slice * group + pose]``. Returns (batch, output channels, group, height, width).
        A faster form asks :meth:`is_fusible` first, and calls this one if the answer is no.
        """
        return attend_gathered(self, planes, self.group.order, rows, channel_step)


Form = TypeVar("Form", bound=type[AttentionLayer])
ATTENTIONS: Registry[type[AttentionLayer]] = Registry("form of attention")


def register_attention(name: str) -> Callable[[Form], Form]:
    """Return a class decorator that registers a form of attention, so that networks can be built with it by name.

    The class derives from :class:`PoseAttention`, or from :class:`AttentionLayer` if it has no mask, and is constructed
    as ``cls(channels, group=G)``, with the options of networks that it names. ``create_model("p4cnn", attention=name)``
    places it after every convolution, or with ``on_input`` before every convolution.

    Example::

        @register_attention("above_mean")
        class AboveMean(PoseAttention):
            def mask(self, x: Tensor) -> Tensor:
                return torch.sigmoid(x - x.mean(2, keepdim=True))
    """

    def register(form: Form) -> Form:
        if not (isinstance(form, type) and issubclass(form, AttentionLayer)):
            raise ValueError(f"register_attention expects a subclass of PoseAttention or AttentionLayer, got {form!r}.")
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
