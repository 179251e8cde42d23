"""Inference time of restricted group convolutions relative to unrestricted ones.

    python -m benchmarks.restriction_speed [--rounds 15] [--batch 32] [--threads 2] [--quick]

First p4-All-CNN as a whole, with half and a quarter of the relative poses in every group convolution, as ratios to the
unrestricted network; half both as a subgroup (turns by 0 and 180 degrees) and as neighbours (0 and 90), which fall into
fewer and larger or more and smaller blocks. Then single layers: blocks relative to one convolution with zeros, which a
layer uses where blocks are slower; the last column is its choice. Rounds are interleaved; every figure is the median of
their ratios, followed by the middle half of them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
import tyro

import coattend as ca
from coattend._timing import Step, compared, inference, interleaved
from coattend.models import restricted
from coattend.nn import GroupConv2d, SliceCoAttentiveConv2d

NETWORK = "p4_allcnn"
POSES = {"half, a subgroup": (0, 2), "half, neighbours": (0, 1), "a quarter": (0,)}
LIMITS = {"half, a subgroup": 0.75, "half, neighbours": 0.75, "a quarter": 0.45}
LAYERS = [(48, 32, 3), (96, 16, 3), (96, 8, 1), (10, 26, 3), (16, 26, 3), (24, 26, 3)]  # channels, size, kernel
LARGER = {
    "C8": ((0, 2, 4, 6), (0, 1, 2, 3), (0, 4), (0, 1), (0,)),
    "D4": ((0, 2, 4, 6), (0, 1, 2, 5), (0, 5), (0, 1), (0,)),
}


def ratios(steps: Mapping[str, Step], baseline: str, rounds: int) -> dict[str, str]:
    """Return median and quartiles of every step's time relative to the step ``baseline``."""
    seconds = interleaved(steps, rounds)
    measured = {name: compared("", name, seconds[name], seconds[baseline]) for name in steps if name != baseline}
    return {name: f"{m.ratio:.2f} ({m.low:.2f}-{m.high:.2f})" for name, m in measured.items()}


def whole_network(rounds: int, batch: int) -> None:
    """Print the network's ratios."""
    full = ca.create_model(NETWORK)
    images = torch.randn(batch, 3, 32, 32)
    steps = {"full": inference(full, images)}
    for name, relative in POSES.items():
        steps[name] = inference(restricted(full, relative), images)
    print(f"\n| {NETWORK}, batch {batch} | time | at most |\n|---|---|---|")
    for name, ratio in ratios(steps, "full", rounds).items():
        print(f"| {name} | {ratio} | {LIMITS[name]} |", flush=True)


def layers(rounds: int, batch: int, quick: bool) -> None:
    """Print the break-even of single layers."""
    print("\n| group | channels, size, kernel | T | blocks / zeros | chosen |\n|---|---|---|---|---|")
    cases = [("C4", shape, T) for shape in LAYERS for T in POSES.values()]
    if not quick:
        cases += [(name, (c, 20, 3), T) for name, sets in LARGER.items() for c in (8, 10, 16) for T in sets]
    for name, (channels, size, kernel), relative in cases:
        blocks = GroupConv2d(channels, channels, kernel, name, padding=kernel // 2, relative=relative)
        zeros = copy.deepcopy(blocks)
        chosen = "blocks" if blocks.in_blocks else "zeros"
        blocks.in_blocks, zeros.in_blocks = True, False
        x = torch.randn(batch, channels, blocks.group.order, size, size)
        measured = ratios({"blocks": inference(blocks, x), "zeros": inference(zeros, x)}, "zeros", rounds)
        print(f"| {name} | {channels}, {size}, {kernel} | {relative} | {measured['blocks']} | {chosen} |", flush=True)


def slices(rounds: int, batch: int) -> None:
    """Print the ratios of the layer with attention per slice."""
    print("\n| slice attention, 10 channels | T | time relative to all |\n|---|---|---|")
    for name in ("C4", "C8"):
        x = torch.randn(batch, 10, ca.get_group(name).order, 26, 26)
        steps = {"full": inference(SliceCoAttentiveConv2d(10, 10, 3, name), x)}
        for relative in POSES.values():
            steps[str(relative)] = inference(SliceCoAttentiveConv2d(10, 10, 3, name, relative=relative), x)
        for kept, ratio in ratios(steps, "full", rounds).items():
            print(f"| {name} | {kept} | {ratio} |", flush=True)


def main(rounds: int = 15, batch: int = 32, threads: int = 2, quick: bool = False) -> None:
    """Print the tables.

    Args:
        rounds: Interleaved rounds; the median counts.
        batch: Images per batch.
        threads: Threads of torch.
        quick: Leave out the larger groups.
    """
    torch.set_num_threads(threads)
    whole_network(rounds, batch)
    slices(rounds, batch)
    layers(rounds, batch, quick)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
