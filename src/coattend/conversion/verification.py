"""The explicit orbit mean, against which every conversion is measured."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from coattend.conversion.frames import move_of
from coattend.groups import FiniteGroup, transform_image


def orbit(model: nn.Module, images: Tensor, group: FiniteGroup, axes: tuple[str, ...] | None) -> Tensor:
    """Return ``g.f(g^-1 x)`` for every pose as a batch (batch * group, ...); without positions ``f(g^-1 x)``."""
    with torch.no_grad():
        poses = [
            moved_back(model(transform_image(images, group, int(group.inverse[g])).contiguous()), group, g, axes)
            for g in group.elements
        ]
    return torch.stack(poses, 1).flatten(0, 1)


def moved_back(y: Tensor, group: FiniteGroup, g: int, axes: tuple[str, ...] | None) -> Tensor:
    """Return an output for a turned image as it is for the image itself: turned back if it has positions."""
    if axes is None or "h" not in axes:
        return y
    return move_of(group, g).apply(y, axes.index("h"), axes.index("w"))


def orbit_mean(
    model: nn.Module, images: Tensor, group: FiniteGroup, axes: list[tuple[str, ...] | None]
) -> list[Tensor]:
    """Return ``1/n sum_g g.f(g^-1 x)`` for each tensor that a network returns, computed one pose after another."""
    total: list[Tensor] = []
    with torch.no_grad():
        for g in group.elements:
            outputs = tensors_of(model(transform_image(images, group, int(group.inverse[g])).contiguous()))
            moved = [moved_back(y, group, g, a) for y, a in zip(outputs, axes, strict=True)]
            total = moved if not total else [t + m for t, m in zip(total, moved, strict=True)]
    return [t / group.order for t in total]


def tensors_of(output: Any) -> list[Tensor]:
    """Return the tensors in what a network returns, in order."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, (tuple, list)):
        return [tensor for part in output for tensor in tensors_of(part)]
    return []


def relative_difference(actual: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest difference of outputs relative to the largest value; infinite for other shapes or NaN."""
    if [a.shape for a in actual] != [e.shape for e in expected]:
        return float("inf")
    errors = [
        float((a - e).abs().max() / e.abs().max().clamp(min=1e-300)) if e.numel() else 0.0
        for a, e in zip(actual, expected, strict=True)
    ]
    return max((error if error == error else float("inf") for error in errors), default=float("inf"))
