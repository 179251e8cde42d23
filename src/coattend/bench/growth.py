"""How the cost of attention grows with the group's order, channels, image size and batch."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from coattend.bench.measure import Measurement, Step, compared, interleaved
from coattend.groups import cyclic
from coattend.nn import CoAttention, GroupConv2d

ORDERS, FACTORS = (4, 8, 16, 32), (1, 2, 4)


def growth(batch: int = 64, channels: int = 10, size: int = 24, rounds: int = 20) -> Iterator[Measurement]:
    """Forward and backward of one layer by that of the smallest, and by the 3x3 convolution before it."""
    smallest = _attention(batch, channels, 4, size)
    cases = {
        **{("order", order): (batch, channels, order, size) for order in ORDERS},
        **{("channels", f * channels): (batch, f * channels, 4, size) for f in FACTORS},
        **{("pixels", f * f * size * size): (batch, channels, 4, f * size) for f in FACTORS[:2]},
        **{("batch", f * batch): (f * batch, channels, 4, size) for f in FACTORS},
    }
    for (axis, value), case in cases.items():
        seconds = interleaved({"one": smallest, "grown": _attention(*case)}, rounds)
        yield compared(f"growth with {axis}", str(value), seconds["grown"], seconds["one"])
    for order in ORDERS:
        case = (batch, channels, order, size)
        seconds = interleaved({"attention": _attention(*case), "convolution": _convolution(*case)}, rounds)
        yield compared("attention / convolution, by order", str(order), seconds["attention"], seconds["convolution"])


def _attention(batch: int, channels: int, order: int, size: int) -> Step:
    layer = CoAttention(channels, cyclic(order))
    return _forward_backward(layer, torch.randn(batch, channels, order, size, size, requires_grad=True))


def _convolution(batch: int, channels: int, order: int, size: int) -> Step:
    layer = GroupConv2d(channels, channels, 3, cyclic(order), padding=1)
    return _forward_backward(layer, torch.randn(batch, channels, order, size, size, requires_grad=True))


def _forward_backward(layer: torch.nn.Module, x: torch.Tensor) -> Step:
    up = torch.randn_like(x)
    leaves = [x, *layer.parameters()]
    return lambda: torch.autograd.grad(layer(x), leaves, up)
