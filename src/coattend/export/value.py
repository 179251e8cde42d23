"""The values that flow through the graph of a frozen network."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx, nn

SMALLEST_SCALE = 1e-12  # smaller scales of a norm are not divided by


@dataclass(frozen=True)
class Fold:
    """The constants of a frozen network that a batch norm after a value can be folded into.

    Without ``matrices`` the value is the output of ``conv``, perhaps in another order of planes. With them it is that
    output multiplied by masks, which stay the same if the matrices of their logits are divided by the scale:
    ``s (m x) + t = m (s x) + t``.

    - channels: for each output plane of the convolution, the channel of the value
    - matrices: attention matrices, each tensor with the channel of the value for each matrix in it
    - offset: the constant (planes, 1, 1) that is added at the end
    """

    conv: nn.Conv2d
    channels: Tensor
    matrices: tuple[tuple[Tensor, Tensor], ...] = ()
    offset: Tensor | None = None

    def admits(self, scale: Tensor) -> bool:
        """Return whether the constants can be scaled."""
        return not self.matrices or bool((scale.abs() > SMALLEST_SCALE).all())

    def apply(self, scale: Tensor, shift: Tensor) -> Tensor | None:
        """Change the constants so that the value becomes ``scale * value + shift``, both float64 and per channel.

        Returns the shift if no constant could take it, so that it has to be added to the value.
        """
        conv, factors = self.conv, scale[self.channels]
        bias = torch.zeros_like(factors) if conv.bias is None else conv.bias.double() * factors
        if not self.matrices:
            bias = bias + shift[self.channels]
        conv.weight.data = (conv.weight.double() * factors[:, None, None, None]).to(conv.weight.dtype)
        if conv.bias is not None or not self.matrices:
            conv.bias = nn.Parameter(bias.to(conv.weight.dtype), requires_grad=False)
        for matrices, channels in self.matrices:
            matrices.copy_(matrices.double() / scale[channels][:, None, None])
        if not self.matrices:
            return None
        if self.offset is None:
            return shift
        poses = len(self.offset) // len(scale)
        scales, shifts = (t.repeat_interleave(poses)[:, None, None] for t in (scale, shift))
        self.offset.copy_(self.offset.double() * scales + shifts)
        return None


@dataclass(frozen=True)
class Value:
    """What a node of the original network became.

    - poses: the value is a map, folded into (batch, channels * poses, height, width); None if it is what it was
    - fold: what a batch norm after the value can be folded into, None for nothing
    - owned: whether no other node reads the value, so that it may be overwritten
    """

    node: fx.Node
    poses: int | None = None
    fold: Fold | None = None
    owned: bool = False

    def shared(self) -> Value:
        """Return the same value for several readers: neither its constants nor its content may change."""
        return replace(self, fold=None, owned=False)
