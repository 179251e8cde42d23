"""Training step and construction of networks over C8 whose filters turn, relative to plain convolutions.

    python -m benchmarks.filter_speed [--rounds 15] [--batch 128] [--threads 2]

The plain network has as many planes (7 channels in 8 poses), the same layers, and the same head: a convolution to 80
planes and the maximum over the eight poses of a class. Both run in the memory format that networks use on this machine.
Rounds are interleaved; every figure is the median of their ratios, followed by the middle half of them.
"""

from __future__ import annotations

import time

import tyro
from torch import Tensor, nn

import coattend as ca
from coattend._timing import compared, interleaved
from coattend.bench import plain_network, prepare_process, random_batch
from coattend.bench.mode import Mode, resolved
from coattend.nn import GroupConv2d

WIDTH, ORDER, CLASSES = 7, 8, 10
NETWORKS = {
    "free, 3x3": "kernel=3,filters=free",
    "steerable, 3x3": "kernel=3,filters=steerable",
    "free, 5x5": "kernel=5,filters=free",
    "steerable, 5x5": "kernel=5,filters=steerable",
}
LIMIT = 1.05
BUILDING_LIMIT = 0.05  # seconds


class MaxOverPoses(nn.Module):
    """The largest response of a class over the poses and positions."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of planes (batch, classes * poses, height, width)."""
        return x.unflatten(1, (-1, ORDER)).amax(dim=(2, 3, 4))


def plain(kernel: int) -> nn.Sequential:
    """Return the plain network."""
    layers = list(plain_network(WIDTH * ORDER, kernel))[:-3]  # without its head
    return nn.Sequential(*layers, nn.Conv2d(WIDTH * ORDER, CLASSES * ORDER, 4), MaxOverPoses())


def main(rounds: int = 15, batch: int = 128, threads: int = 2) -> None:
    """Print the tables.

    Args:
        rounds: Interleaved rounds; the median counts.
        batch: Images per batch.
        threads: Threads of torch.
    """
    prepare_process(threads)
    start = time.perf_counter()
    GroupConv2d(16, 16, 7, "C16")
    print(f"building GroupConv2d(16, 16, 7, C16): {time.perf_counter() - start:.3f} s, at most {BUILDING_LIMIT}\n")
    mode, (images, labels) = Mode(resolved("auto")), random_batch(batch, 28)
    print("| filters of C8 | training step / plain network | at most |\n|---|---|---|")
    for name, options in NETWORKS.items():
        network = ca.create_model(f"p4cnn:group=C{ORDER},width={WIDTH},head=max,dropout=0,{options}")
        networks = {"ours": network, "plain": plain(int(name[-1]))}
        steps = {key: mode.training_step(network, images, labels) for key, network in networks.items()}
        seconds = interleaved(steps, rounds)
        m = compared("", name, seconds["ours"], seconds["plain"])
        print(f"| {name} | {m.ratio:.3f} ({m.low:.3f}-{m.high:.3f}) | {LIMIT} |", flush=True)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
