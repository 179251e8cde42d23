"""Dropout of single elements, with a mask that is fast to draw on CPUs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.functional.checks import check_tensor
from coattend.functional.dispatch import HAS_OPERATORS, is_eager
from coattend.functional.layout import is_channels_last

LEVELS = 1 << 16  # one mask element takes 16 random bits, so one draw of the generator yields four


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Drop elements as ``F.dropout`` does: in training, zero them with probability p and scale the others to match.

    On CPUs torch draws one double per element in one thread, a fifth of a training step of a small network. Here p is
    rounded to 16 bits, and so is the factor. The masks of a seed therefore differ from those of ``F.dropout``.
    """
    check_tensor("dropout", "x", x, "of any shape", 0, or_more=True)
    if isinstance(p, bool) or not isinstance(p, (int, float)) or not 0 <= p <= 1:
        raise ValueError(f"dropout expects a probability p from 0 to 1, got {p!r}; 0 drops nothing, 1 everything.")
    dropped = round(p * LEVELS)
    if x.device.type != "cpu" or not is_eager(x) or not training or not 0 < dropped < LEVELS:
        return F.dropout(x, p, training)
    # From the smallest int64 to the largest: without bounds random_ leaves the sign bit at 0.
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(torch.iinfo(torch.int64).min, None)
    drawn, least, factor = draws.view(torch.int16)[: x.numel()], dropped - LEVELS // 2, LEVELS / (LEVELS - dropped)
    if HAS_OPERATORS and is_channels_last(x) and not x.is_contiguous():
        return torch.ops.coattend.drop(x, drawn, least, factor)[0]
    return x * (drawn.view(x.shape) >= least).to(x.dtype).mul_(factor)
