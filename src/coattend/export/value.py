"""The values that flow through the graph of a frozen network while it is being built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor, fx, nn

Absorb = Callable[[Tensor, Tensor], fx.Node | None]


@dataclass(frozen=True)
class Value:
    """What a node of the original network became.

    ``poses``: the node stands for a map, folded into (batch, channels * poses, height, width); None: it is what it was.
    ``absorb``: scale and shift each channel by changing the weights that made the value; gives the node that then holds
    it, or None if that is impossible.
    ``conv``: the convolution whose output this is. ``owned``: nobody else reads it, so it may be overwritten.
    """

    node: fx.Node
    poses: int | None = None
    absorb: Absorb | None = None
    conv: nn.Conv2d | None = None
    owned: bool = False

    def shared(self) -> Value:
        """The same value with several readers: neither the weights behind it nor its content may change."""
        return replace(self, absorb=None, conv=None, owned=False)
