"""Convolution and attention in one kernel, a few lines at a time, relative to a convolution by torch and another pass.

    python -m benchmarks.tile_speed [--rounds 9] [--threads 2] [--bf16]

The rules that choose between the two (``stays_in_cache`` of ``coattend.functional.planes`` and what calls it) are
switched off: one way is forced, then the other. Rounds are interleaved; every figure is the median of their ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import torch
import tyro
from torch import Tensor, nn

import coattend as ca
from coattend._timing import compared, interleaved
from coattend.bench import prepare_process
from coattend.functional import convolution, memory_format
from coattend.functional.layout import channels_last
from coattend.nn import norm as norm_layers

# group, channels, kernel, size, batch
SLICES = (
    ("C4", 10, 3, 26, 128),
    ("C4", 16, 3, 26, 64),
    ("C4", 20, 3, 26, 64),
    ("C4", 32, 3, 16, 64),
    ("C4", 10, 5, 26, 64),
    ("C4", 10, 3, 128, 8),
    ("D4", 4, 3, 26, 64),
    ("D4", 10, 3, 26, 64),
    ("C8", 7, 5, 26, 32),
)
OUTPUTS = (
    ("C4", 10, 3, 26, 128),
    ("C4", 10, 3, 26, 1),
    ("C4", 10, 5, 26, 64),
    ("C4", 14, 3, 26, 64),
    ("C4", 16, 3, 26, 64),
    ("C4", 20, 3, 26, 64),
    ("C4", 22, 3, 26, 64),
    ("C4", 10, 1, 26, 128),
    ("D4", 8, 3, 26, 64),
    ("C8", 7, 5, 26, 32),
)
HEADING = "| group, channels, kernel, map, batch | {} | inference |\n|---|---|---|"
Step = Callable[[], object]


@contextmanager
def slices_in(tiles: bool) -> Iterator[None]:
    """Force slice attention in one kernel, or a convolution and attention after it."""
    with mock.patch.object(convolution, "slices_stay_in_cache", return_value=tiles):
        yield


def training(network: nn.Module, x: Tensor, tiles: bool) -> Step:
    """Return a forward and backward pass."""

    def step() -> None:
        with slices_in(tiles):
            y = network(x)
        y.backward(torch.ones_like(y))

    return step


def evaluation(network: nn.Module, x: Tensor, tiles: bool) -> Step:
    """Return a forward pass without gradients."""

    def step() -> None:
        with slices_in(tiles), torch.no_grad():
            network(x)

    return step


def one_pass(conv: ca.nn.GroupConv2d, attention: ca.nn.CoAttention, norm: ca.nn.GroupBatchNorm2d, x: Tensor) -> Step:
    """Return convolution, co-attention, norm and ReLU in one kernel."""
    from coattend.functional._kernels.conv_attention import conv_attention

    assert norm.running_mean is not None
    assert norm.running_var is not None
    statistics = norm.running_mean, norm.running_var

    def step() -> None:
        with torch.no_grad():
            bank, bias, matrix = conv.dense_filters(x), conv.expanded_bias(), attention.matrix()
            conv_attention(x, bank, bias, 0, matrix, norm.weight, norm.bias, statistics, norm.eps, relu=True)

    return step


def ratio(steps: dict[str, Step], rounds: int) -> str:
    """Return the time of the first step relative to the second."""
    first, second = interleaved(steps, rounds).values()
    return f"{compared('', '', first, second).ratio:.2f}"


def example(group: str, channels: int, size: int, batch: int, bf16: bool) -> Tensor:
    """Return a map in channels-last format."""
    x = torch.randn(batch, channels, ca.get_group(group).order, size, size)
    return channels_last(x.bfloat16() if bf16 else x)


def main(rounds: int = 9, threads: int = 2, bf16: bool = False) -> None:
    """Print the tables.

    Args:
        rounds: Interleaved rounds; the median counts.
        threads: Threads of torch.
        bf16: Maps in bfloat16, layers under autocast.
    """
    prepare_process(threads)
    with memory_format("channels_last"), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        print("slice attention\n", HEADING.format("training"), sep="\n")
        for group, channels, k, size, batch in SLICES:
            layer = ca.nn.SliceCoAttentiveConv2d(channels, channels, k, group)
            x = example(group, channels, size, batch, bf16)
            x.requires_grad_()
            figures = [
                ratio({str(tiles): make(layer, x, tiles) for tiles in (True, False)}, rounds)
                for make in (training, evaluation)
            ]
            print(f"| {group}, {channels}, {k}x{k}, {size}x{size}, {batch} | {' | '.join(figures)} |", flush=True)
        print("\nco-attention, norm and ReLU\n", HEADING.format("planes"), sep="\n")
        for group, channels, k, size, batch in OUTPUTS:
            conv, attention = ca.nn.GroupConv2d(channels, channels, k, group).eval(), ca.nn.CoAttention(channels, group)
            norm, x = ca.nn.GroupBatchNorm2d(channels).eval(), example(group, channels, size, batch, bf16)
            layers = ca.nn.FusedSequential(conv, attention, norm, nn.ReLU()).eval()
            with mock.patch.object(norm_layers, "attention_joins", return_value=False):
                figure = ratio({"one": one_pass(conv, attention, norm, x), "two": evaluation(layers, x, False)}, rounds)
            planes = channels * conv.group.order
            print(f"| {group}, {channels}, {k}x{k}, {size}x{size}, {batch} | {planes} | {figure} |", flush=True)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
