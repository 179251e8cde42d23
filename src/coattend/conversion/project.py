"""Projection: filters replaced by their mean over all poses, so that every map turns with the image, at no cost."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from coattend.conversion.frames import move_of
from coattend.conversion.geometry import square_kernel
from coattend.conversion.refusal import ConversionError
from coattend.conversion.step import Record
from coattend.groups import FiniteGroup


def projected(model: nn.Module, group: FiniteGroup) -> tuple[nn.Module, list[Record]]:
    """Return a copy with symmetric filters, and the share of the squared norm of each filter that is left."""
    copied = copy.deepcopy(model)
    records = []
    for name, layer in copied.named_modules():
        if not isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)) or max(layer.kernel_size) == 1:
            continue
        weight = layer.weight.detach()
        if weight.shape[-1] != weight.shape[-2]:
            weight = _squared(layer, weight)
        mean = torch.stack([move_of(group, g).apply(weight, 2, 3) for g in group.elements]).mean(0)
        with torch.no_grad():
            layer.weight = nn.Parameter(mean, layer.weight.requires_grad)
        share = float(mean.square().sum() / weight.square().sum().clamp(min=1e-30))
        records.append(Record(name, "projected", f"{100 * share:.1f} % of its squared norm is left"))
    return copied, records


def _squared(layer: nn.Conv2d | nn.ConvTranspose2d, weight: Tensor) -> Tensor:
    """Make a kernel that is not square a square one with zeros around it, which computes the same."""
    square = square_kernel(weight)
    added = [n - k for n, k in zip(square.shape[-2:], weight.shape[-2:], strict=True)]
    padding = layer.padding if isinstance(layer.padding, tuple) else (0, 0)
    layer.padding = tuple(p + d * n // 2 for p, d, n in zip(padding, layer.dilation, added, strict=True))
    layer.kernel_size = tuple(square.shape[-2:])
    return square


def require_common_frames(records: Sequence[Record]) -> None:
    """Refuse a network with operations that depend on directions, which symmetric filters do not make equivariant."""
    for record in records:
        if record.how == "own frame":
            raise ConversionError(
                record.layer,
                f"{record.reason}, which symmetric filters do not make equivariant",
                'use mode="inflate", which computes it for each pose in its own frame',
            )
