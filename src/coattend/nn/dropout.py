"""Dropout for maps on a group."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from coattend.functional import dropout
from coattend.nn.checks import check_number, check_real_map


class GroupDropout2d(nn.Module):
    """Drop whole maps, a channel with all its poses and positions at once, or single elements, in training.

    With whole maps dropped, each drawn network is equivariant; with single elements dropped, it is so on average.
    """

    def __init__(self, p: float = 0.5, elementwise: bool = False) -> None:
        super().__init__()
        self.p = check_number(self, "the probability p", p, 0, 1)
        self.elementwise = elementwise

    def forward(self, x: Tensor) -> Tensor:
        check_real_map(self, x)
        if self.elementwise:
            return dropout(x, self.p, self.training)
        return F.dropout3d(x, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}, elementwise={self.elementwise}"
