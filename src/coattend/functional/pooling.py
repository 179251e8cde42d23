"""The maximum over 2x2 windows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.functional.checks import check_windows
from coattend.functional.dispatch import decomposes, is_exporting


def max_pool_2x2(x: Tensor) -> Tensor:
    """Return the maximum over 2x2 windows that do not overlap: (..., height, width) -> (..., height/2, width/2).

    Height and width are even. Equal maxima share the gradient evenly, so that the gradient is as equivariant as the
    value.
    """
    check_windows("max_pool_2x2", x)
    return max_pool_formula(x) if decomposes(x) else torch.ops.coattend.max_pool(x)


def max_pool_formula(x: Tensor) -> Tensor:
    """Pool by ``amax``, which shares the gradient; exported graphs have no gradient and use ``max_pool2d``."""
    if is_exporting() or torch._C._is_tracing():
        return F.max_pool2d(x.flatten(1, -3), 2).unflatten(1, x.shape[1:-2])
    return x.unflatten(-1, (-1, 2)).unflatten(-3, (-1, 2)).amax((-1, -3))
