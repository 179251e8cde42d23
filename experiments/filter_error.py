"""Equivariance error of filters rotated by angles other than multiples of 90 degrees.

    python -m experiments.filter_error

Prints the table of docs/conventions.md. Patches of plane waves are rotated analytically, so that only the filters are
interpolated: a layer gets a patch of the size of its kernel and the rotated patch, and the responses must agree up to
the permutation of poses. Each figure is the root mean square difference over all inexact elements, relative to the
responses: first for filters of independent normal numbers, as after initialisation, then for these filters blurred.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

import coattend as ca
from coattend.groups import FiniteGroup, Interpolation

GROUPS = ("C8", "D8", "C6")
KERNELS = (3, 5, 7)
INTERPOLATIONS: tuple[Interpolation, ...] = ("bilinear", "bicubic")
PATCHES, CHANNELS = 256, 16
SHORTEST, LONGEST = 4.0, 16.0  # wavelengths in pixels
BLUR = 0.8  # standard deviation, in pixels, of the blur that makes filters smooth


class Waves:
    """Random plane waves, one per patch and plane, sampled in any pose."""

    def __init__(self, *planes: int) -> None:
        angle = torch.rand(PATCHES, *planes) * 2 * math.pi
        number = 2 * math.pi / (SHORTEST + torch.rand(PATCHES, *planes) * (LONGEST - SHORTEST))
        self.vector = torch.stack([number * angle.cos(), number * angle.sin()], dim=-1)
        self.phase = torch.rand(PATCHES, *planes) * 2 * math.pi

    def sample(self, kernel_size: int, matrix: Tensor) -> Tensor:
        """Return ``(g.f)(u) = f(g^-1 u)`` on the grid of a kernel, x to the right and y up."""
        steps = torch.arange(kernel_size) - (kernel_size - 1) / 2
        grid = torch.stack(torch.broadcast_tensors(steps[None, :], -steps[:, None]), dim=-1) @ matrix
        return torch.cos((grid * self.vector[..., None, None, :]).sum(-1) + self.phase[..., None, None])


def blurred(weight: Tensor) -> Tensor:
    """Return the filters after a Gaussian blur."""
    k = weight.shape[-1]
    steps = torch.arange(k, dtype=weight.dtype)
    blur = torch.exp(-((steps[:, None] - steps) ** 2) / (2 * BLUR**2))
    return blur @ weight @ blur


def error(group: FiniteGroup, kernel_size: int, interpolation: Interpolation, on_group: bool, smooth: bool) -> float:
    """Return the relative error of a lifting (or group) convolution over all inexact elements."""
    torch.manual_seed(0)
    kind = ca.nn.GroupConv2d if on_group else ca.nn.LiftingConv2d
    layer = kind(1, CHANNELS, kernel_size, group, bias=False, interpolation=interpolation)
    if smooth:
        layer.weight.data = blurred(layer.weight.data)
    waves = Waves(1, group.order) if on_group else Waves(1)
    matrices = torch.tensor(group.planar)

    def responses(g: int) -> Tensor:
        x = waves.sample(kernel_size, matrices[g])
        x = x[:, :, group.relative[g].tolist()] if on_group else x
        with torch.no_grad():
            return layer(x).flatten(2)

    straight = responses(0)
    inexact = [g for g in group.elements if g not in group.exact_elements]
    squared = [(responses(g) - straight[:, :, group.relative[g].tolist()]).square().mean() for g in inexact]
    return float((torch.stack(squared).mean() / straight.square().mean()).sqrt())


def table() -> str:
    """Return the errors as a Markdown table."""
    lines = [
        "| group | kernel | lifting, bilinear | lifting, bicubic | group conv, bilinear | group conv, bicubic |",
        "|---|---|---|---|---|---|",
    ]
    for name in GROUPS:
        for kernel_size in KERNELS:
            cells = [
                " / ".join(
                    f"{error(ca.get_group(name), kernel_size, interpolation, on_group, smooth):.3f}"
                    for smooth in (False, True)
                )
                for on_group in (False, True)
                for interpolation in INTERPOLATIONS
            ]
            lines.append(f"| {name} | {kernel_size} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    print(table())
