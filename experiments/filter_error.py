"""Equivariance error of filters rotated by angles other than multiples of 90 degrees.

    python -m experiments.filter_error             # single layers on plane waves
    python -m experiments.filter_error --digits    # three layers with ReLU on digits
    python -m experiments.filter_error --e2cnn     # with e2cnn beside it, as in the documentation

Prints the tables of docs/conventions.md.

Single layers: patches of plane waves are rotated analytically, so that only the filters are approximate. A layer gets a
patch of the size of its kernel and the rotated patch, and the responses must agree up to the permutation of poses. Each
figure is the root mean square difference over all inexact elements, relative to the responses, for new weights: first
for waves of 4 to 16 pixels, then of 8 to 32.

Three layers: digits, enlarged or not, are rotated by spline interpolation of order 5, and so are the maps that must
agree inside the inscribed disc. This measures the whole pipeline, with the kinks of ReLU and the details of strokes;
the figure is the root mean square over several draws of the weights.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy import ndimage  # type: ignore[import-untyped]
from torch import Tensor, nn

import coattend as ca
from coattend.data import load_data
from coattend.groups import Filters, FiniteGroup

ROWS = (
    ("C8", 3, False),
    ("C8", 5, False),
    ("C8", 7, False),
    ("C8", 7, True),
    ("D8", 5, True),
    ("C16", 5, True),
    ("C6", 7, False),
    ("C6", 7, True),
)
FILTERS: tuple[Filters, ...] = ("bilinear", "bicubic", "free", "steerable")
BANDS = ((4.0, 16.0), (8.0, 32.0))  # wavelengths in pixels
PATCHES, CHANNELS = 256, 16
DIGITS, WIDTH, MARGIN = 4, 8, 8
NETWORKS = 4  # draws of the weights of three layers, whose errors differ by a factor of five
Network = Callable[[Tensor], Tensor]
Conv = Callable[[int, int, int, int, bool], Network]  # (in, out, kernel size, padding, on the group) -> convolution


class Waves:
    """Random plane waves, one per patch and plane, sampled in any pose."""

    def __init__(self, band: tuple[float, float], *planes: int) -> None:
        angle = torch.rand(PATCHES, *planes) * 2 * math.pi
        number = 2 * math.pi / (band[0] + torch.rand(PATCHES, *planes) * (band[1] - band[0]))
        self.vector = torch.stack([number * angle.cos(), number * angle.sin()], dim=-1)
        self.phase = torch.rand(PATCHES, *planes) * 2 * math.pi

    def sample(self, kernel_size: int, matrix: Tensor) -> Tensor:
        """Return ``(g.f)(u) = f(g^-1 u)`` on the grid of a kernel, x to the right and y up."""
        steps = torch.arange(kernel_size) - (kernel_size - 1) / 2
        grid = torch.stack(torch.broadcast_tensors(steps[None, :], -steps[:, None]), dim=-1) @ matrix
        return torch.cos((grid * self.vector[..., None, None, :]).sum(-1) + self.phase[..., None, None])


def convolution(group: FiniteGroup, filters: Filters) -> Conv:
    """Return a function that makes a new layer with given filters."""

    def make(in_channels: int, out_channels: int, kernel_size: int, padding: int, on_group: bool) -> Network:
        kind = ca.nn.GroupConv2d if on_group else ca.nn.LiftingConv2d
        return kind(in_channels, out_channels, kernel_size, group, padding=padding, bias=False, filters=filters)

    return make


def inexact(group: FiniteGroup) -> list[int]:
    """Return the elements that do not move pixels onto pixels."""
    return [g for g in group.elements if g not in group.exact_elements]


def wave_error(
    group: FiniteGroup, kernel_size: int, conv: Conv, on_group: bool, band: tuple[float, float] = BANDS[0]
) -> float:
    """Return the relative error of a lifting (or group) convolution on plane waves, over all inexact elements."""
    torch.manual_seed(0)
    layer = conv(1, CHANNELS, kernel_size, 0, on_group)
    waves = Waves(band, 1, group.order) if on_group else Waves(band, 1)
    matrices = torch.tensor(group.planar)

    def responses(g: int) -> Tensor:
        x = waves.sample(kernel_size, matrices[g])
        x = x[:, :, group.relative[g].tolist()] if on_group else x
        with torch.no_grad():
            return layer(x).flatten(2)

    straight = responses(0)
    squared = [(responses(g) - straight[:, :, group.relative[g].tolist()]).square().mean() for g in inexact(group)]
    return float((torch.stack(squared).mean() / straight.square().mean()).sqrt())


def digits(scale: int) -> Tensor:
    """Return digits with a margin, enlarged by a spline."""
    images = load_data("mini").test.images[:DIGITS, 0].double().numpy() / 255
    padded = np.pad(images, ((0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN)))
    enlarged = [ndimage.zoom(a, scale, order=3, mode="constant", grid_mode=True) if scale > 1 else a for a in padded]
    return torch.tensor(np.stack(enlarged))[:, None]


def rotated(x: Tensor, degrees: float) -> Tensor:
    """Return planes rotated counter-clockwise by a spline of order 5."""
    turned = ndimage.rotate(x.numpy(), degrees, axes=(-2, -1), reshape=False, order=5, mode="constant")
    return torch.tensor(turned)


def digit_error(group: FiniteGroup, kernel_size: int, conv: Conv, scale: int = 1) -> float:
    """Return the relative error of three layers with ReLU on digits, over all inexact rotations."""
    errors = [_digit_errors(group, kernel_size, conv, scale, seed) for seed in range(NETWORKS)]
    return float(torch.cat(errors).square().mean().sqrt())


def _digit_errors(group: FiniteGroup, kernel_size: int, conv: Conv, scale: int, seed: int) -> Tensor:
    torch.manual_seed(seed)
    padding = kernel_size // 2
    layers = [conv(1, WIDTH, kernel_size, padding, False)]
    layers += [conv(WIDTH, WIDTH, kernel_size, padding, True) for _ in range(2)]

    def network(x: Tensor) -> Tensor:
        with torch.no_grad():
            for layer in layers:
                x = torch.relu(layer(x))
        return x

    x = digits(scale)
    straight, errors = network(x), []
    assert group.planar is not None
    steps = torch.arange(x.shape[-1]) - (x.shape[-1] - 1) / 2
    disc = steps[:, None] ** 2 + steps**2 < (x.shape[-1] / 2 - MARGIN) ** 2
    for g in inexact(group):
        degrees = math.degrees(math.atan2(group.planar[g][1, 0], group.planar[g][0, 0]))
        expected = rotated(straight[:, :, group.relative[g].tolist()], degrees) * disc
        errors.append((network(rotated(x, degrees)) * disc - expected).norm() / expected.norm())
    return torch.stack(errors)


def e2cnn_convolution(group: FiniteGroup) -> Conv:
    """Return a function that makes a new convolution of e2cnn with its default rings."""
    from tests.e2cnn_oracle import enn, gspaces, regular_conv

    assert group.planar is not None
    mirrored = np.linalg.det(group.planar).min() < 0
    space = gspaces.FlipRot2dOnR2(group.order // 2) if mirrored else gspaces.Rot2dOnR2(group.order)

    def make(in_channels: int, out_channels: int, kernel_size: int, padding: int, on_group: bool) -> Network:
        dtype = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)  # e2cnn computes its basis in single precision
        conv = regular_conv(space, in_channels, out_channels, kernel_size, lifting=not on_group, padding=padding)
        nn.init.zeros_(conv.bias)
        conv.train().eval()  # expands the filters
        torch.set_default_dtype(dtype)

        def network(x: Tensor) -> Tensor:
            planes = x.flatten(1, 2) if on_group else x
            y = conv(enn.GeometricTensor(planes.float(), conv.in_type)).tensor
            return y.unflatten(1, (out_channels, group.order)).to(x.dtype)

        return network

    return make


def _columns(group: FiniteGroup, e2cnn: bool) -> list[Conv]:
    own = [convolution(group, filters) for filters in FILTERS]
    return [*own, e2cnn_convolution(group)] if e2cnn else own


def wave_row(name: str, kernel_size: int, on_group: bool, e2cnn: bool = False) -> list[tuple[float, ...]]:
    """Return the errors of a row: of every kind of filters, for both bands of waves."""
    group = ca.get_group(name)
    return [
        tuple(wave_error(group, kernel_size, conv, on_group, band) for band in BANDS) for conv in _columns(group, e2cnn)
    ]


def wave_table(e2cnn: bool) -> str:
    """Return the errors of single layers as a Markdown table."""
    names = [*map(str, FILTERS), *(["e2cnn"] if e2cnn else [])]
    lines = [f"| group | kernel | layer | {' | '.join(names)} |", f"|---|---|---|{'---|' * len(names)}"]
    for name, kernel_size, on_group in ROWS:
        cells = [
            " / ".join(f"{error:.3f}" for error in errors) for errors in wave_row(name, kernel_size, on_group, e2cnn)
        ]
        lines.append(f"| {name} | {kernel_size} | {'group' if on_group else 'lifting'} | {' | '.join(cells)} |")
    return "\n".join(lines)


def digit_table(e2cnn: bool) -> str:
    """Return the errors of three layers on digits as a Markdown table."""
    names = [*map(str, FILTERS), *(["e2cnn"] if e2cnn else [])]
    lines = [f"| kernel | digits | {' | '.join(names)} |", f"|---|---|{'---|' * len(names)}"]
    group = ca.get_group("C8")
    for kernel_size, scale in ((3, 1), (5, 1), (7, 1), (5, 2)):
        cells = [f"{digit_error(group, kernel_size, conv, scale):.3f}" for conv in _columns(group, e2cnn)]
        size = "28 x 28" if scale == 1 else f"enlarged {scale} times"
        lines.append(f"| {kernel_size} | {size} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--digits", action="store_true", help="three layers with ReLU on digits")
    parser.add_argument("--e2cnn", action="store_true", help="with e2cnn beside it; needs the extra dev")
    options = parser.parse_args(arguments)
    torch.set_default_dtype(torch.float64)
    print((digit_table if options.digits else wave_table)(options.e2cnn))


if __name__ == "__main__":
    main()
