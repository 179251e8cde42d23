"""The choices that all layers of a network share, which are options of every network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from coattend.groups import FilterKind, Filters, FiniteGroup, GroupSequence, Rings
from coattend.nn import AttentionLayer, CoAttention, RestrictGroup, SliceGate2d
from coattend.nn.attention import ATTENTIONS
from coattend.nn.co_attention import Structure

if TYPE_CHECKING:
    from typing_extensions import Self

Attention = str | type[AttentionLayer]
Position = Literal["conv", "norm", "relu"]
Downsample = Literal["stride", "pool"]
Init = Literal["fan_in", "he"]
CO_ATTENTION = ("output", "slice")
SLICES = ("slice", "slice_gate")


@dataclass(frozen=True)
class Choices:
    """The choices that all layers of a network share.

    They are options of every network that :func:`register_model` registers.

    - attention: None; "output", the paper's equations; "slice", co-attention before the sum over relative poses; or
      another form at the place of "output", or on the input of convolutions if it belongs there: "gate", "pose", a
      name given by :func:`register_attention`, or a class; "slice_gate", gates at the place of "slice"
    - structure: of the matrices of co-attention, see :class:`CoAttention`
    - position: attention follows the convolution (as in the paper), the norm, or the ReLU
    - diagonal: of the matrices of co-attention when training starts; 1 in the paper
    - scale: of the logits of co-attention; None for 1 / order, as in the paper
    - heads: of co-attention, whose masks are averaged, or of "pose", which has queries and keys of its own in each
    - downsample: strided convolutions as published, or stride 1 and 2x2 max-pooling between attention and norm
    - init_std: standard deviation of new weights, "fan_in" for 1 / sqrt(fan_in), "he" for sqrt(2 / fan_in), or a
      number; attention vectors are drawn like the weights of their layer
    - filters: what the weights of convolutions hold and how they turn by angles other than multiples of 90 degrees,
      see :class:`PoseConv2d`; the orders of :class:`Rings` count from the center, as many as fit a layer's kernel
    - norm, norm_eps, norm_momentum: whether batch norms follow convolutions, and their constants
    """

    group: FiniteGroup
    attention: Attention | None = None
    structure: Structure = "group"
    position: Position = "conv"
    diagonal: float = 1.0
    scale: float | None = None
    heads: int = 1
    downsample: Downsample = "stride"
    init_std: Init | float = "fan_in"
    filters: Filters = "free"
    norm: bool = True
    norm_eps: float = 2e-5
    norm_momentum: float = 0.1
    groups: GroupSequence | None = None  # of all parts of the network; group is that of the part being built

    def __post_init__(self) -> None:
        if not (isinstance(self.attention, type) and issubclass(self.attention, AttentionLayer)):
            own = (None, *CO_ATTENTION, "slice_gate")
            if self.attention not in own and self.attention not in ATTENTIONS:  # to list these searches for plugins
                _check_choice("attention", self.attention, (*own, *ATTENTIONS))
        _check_choice("structure", self.structure, get_args(Structure))
        _check_choice("position", self.position, get_args(Position))
        _check_choice("downsample", self.downsample, get_args(Downsample))
        if not isinstance(self.filters, Rings):
            _check_choice("filters", self.filters, get_args(FilterKind))
        if isinstance(self.init_std, str):
            _check_choice("init_std", self.init_std, get_args(Init))
        acts = "inside" if self.attention in SLICES else "on the input of" if self.form.on_input else None
        if acts is not None and self.position != "conv":
            raise ValueError(
                f"attention={getattr(self.attention, '__name__', self.attention)} acts {acts} the convolution, so "
                f"position={self.position} is impossible; use attention=output or position=conv."
            )
        defaults = {"structure": "group", "diagonal": 1, "scale": None, "heads": 1}
        given = [name for name, default in defaults.items() if getattr(self, name) != default]
        extra = [name for name in given if name not in self.form.options]
        if extra and self.form is not CoAttention:
            raise ValueError(
                f"{' and '.join(extra)}: {self.form.__name__} has no such option; leave it out, or use co-attention, "
                "attention=output or slice."
            )

    @property
    def form(self) -> type[AttentionLayer]:
        """The class of the attention layers."""
        if isinstance(self.attention, type):
            return self.attention
        if self.attention == "slice_gate":
            return SliceGate2d
        return CoAttention if self.attention in (None, *CO_ATTENTION) else ATTENTIONS[self.attention]

    @property
    def changes_group(self) -> bool:
        """Whether the group changes with depth."""
        return self.groups is not None and len(self.groups.groups) > 1

    def at(self, part: int) -> Self:
        """Return the blocks of a part of the network, counted from 1: over the group that it has there."""
        return self if self.groups is None else replace(self, group=self.groups.at(part))

    def channels(self, width: int) -> int:
        """Return how many channels per pose have as many planes as ``width`` channels over the first group.

        A restriction keeps the planes of a map, so that networks keep their cost when the group becomes smaller.
        """
        return width if self.groups is None else width * (self.groups.first.order // self.group.order)

    def restriction(self, part: int) -> RestrictGroup | None:
        """Return the layer between a part of the network and the one before, None where the group stays the same."""
        before, now = self.at(part - 1).group, self.at(part).group
        return None if before == now else RestrictGroup(before, now)


def _check_choice(name: str, value: object, choices: tuple[str | None, ...]) -> None:
    if value not in choices:
        words = ", ".join("none" if choice is None else choice for choice in choices)
        raise ValueError(f"{name} must be one of {words}, got {value!r}.")
