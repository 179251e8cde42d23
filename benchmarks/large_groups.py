"""Co-attention over large groups: Fourier transforms along the rotations relative to the matrix.

    python -m benchmarks.large_groups [--rounds 5] [--threads 2] [--orders 16 32 48 64 96 128]

Forward and backward in float32. The matrix is the C++ kernel up to order 64 and the plain formula above it; "in pieces"
is the matrix applied to as many images at a time as the transforms are, which shows how much of the gain is that of the
cache. The last column is what the layer uses. Rounds are interleaved; every figure is the median of their ratios,
followed by the middle half of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import tyro
from torch import Tensor

import coattend as ca
from coattend._timing import Step, compared, interleaved
from coattend.functional import build_kernels, fourier
from coattend.functional.attention import attend, attention_index, attention_matrix

MAPS = ((64, 8, 24), (64, 8, 8), (2, 8, 24))  # batch, channels, size


def step(function: Callable[[Tensor, Tensor], Tensor], x: Tensor, weights: Tensor, index: Tensor) -> Step:
    """Return a step of forward and backward."""
    gradient = torch.randn_like(x)
    return lambda: torch.autograd.grad(function(x, attention_matrix(weights, index)), (x, weights), gradient)


def in_pieces(x: Tensor, matrix: Tensor) -> Tensor:
    """Attend by the matrix to as many images at a time as the transforms do."""
    return torch.cat([attend(piece, matrix) for piece in x.split(max(1, fourier.PIECE // x[0].numel()))])


def row(group: ca.FiniteGroup, batch: int, channels: int, size: int, rounds: int) -> str:
    """Return one row of the table."""
    n, index = fourier.rotations(group), attention_index(group)
    x = torch.randn(batch, channels, group.order, size, size, requires_grad=True)
    weights = torch.randn(channels, group.order, requires_grad=True)
    candidates: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "matrix": attend,
        "in pieces": in_pieces,
        "transforms": lambda x, matrix: fourier.attend_rotations(x, matrix, n),
    }
    seconds = interleaved({name: step(f, x, weights, index) for name, f in candidates.items()}, rounds, warm_up=1)
    ratios = [compared("", name, seconds[name], seconds["matrix"]) for name in ("in pieces", "transforms")]
    figures = " | ".join(f"{m.ratio:.2f} ({m.low:.2f}-{m.high:.2f})" for m in ratios)
    used = "transforms" if fourier.is_faster(x, group) else "matrix"
    return f"| {group.name} | {group.order} | {batch}, {channels}, {size} | {figures} | {used} |"


def main(rounds: int = 5, threads: int = 2, orders: tuple[int, ...] = (16, 32, 48, 64, 96, 128)) -> None:
    """Print the table.

    Args:
        rounds: Interleaved rounds; the median counts.
        threads: Threads of torch.
        orders: Orders of the groups, even numbers: a cyclic and a dihedral group of each.
    """
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    build_kernels()
    print("| group | order | batch, channels, size | matrix in pieces / matrix | transforms / matrix | used |")
    print("|---|---|---|---|---|---|")
    for case in MAPS:
        for order in orders:
            for group in (ca.cyclic(order), ca.dihedral(order // 2)):
                print(row(group, *case, rounds), flush=True)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
