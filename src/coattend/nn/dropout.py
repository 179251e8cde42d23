"""Dropout for maps on a group."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from coattend.functional import dropout
from coattend.nn.checks import check_map


class GroupDropout2d(nn.Module):
    """Drop whole maps, a channel with all its poses and positions at once, or single elements.

    Whole maps keep each drawn network equivariant; single elements keep it so on average.
    """

    def __init__(self, p: float = 0.5, elementwise: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"GroupDropout2d expects a probability p from 0 to 1, got {p!r}.")
        self.p = p
        self.elementwise = elementwise

    def forward(self, x: Tensor) -> Tensor:
        """Drop, in training only."""
        check_map("GroupDropout2d", x)
        if self.elementwise:
            return dropout(x, self.p, self.training)
        return F.dropout3d(x, self.p, self.training)

    def extra_repr(self) -> str:
        """Print the layer as a signature."""
        return f"p={self.p}" + (", elementwise=True" if self.elementwise else "")
