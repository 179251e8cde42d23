"""Inference time of inflated networks relative to the plain network, divided by the order of the group as well.

    OMP_NUM_THREADS=1 python -m benchmarks.inflated_speed [--width 32] [--batch 16] [--rounds 5]

Rows: filters for all relative poses, for two of them, for the identity alone, and the frozen form of each. Medians of
the ratios of interleaved rounds. A network of the identity alone may take 1.1 times as long as the plain network on
every pose.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import tyro
from experiments.plankton_study import SIZE, network
from torch import Tensor, nn

import coattend as ca


@dataclass(frozen=True)
class Options:
    """Arguments of the program.

    Args:
        groups: Groups to inflate over.
        width: Channels of the first stage.
        batch: Images.
        rounds: Interleaved rounds.
    """

    groups: tuple[str, ...] = ("p4", "p4m")
    width: int = 32
    batch: int = 16
    rounds: int = 5


def seconds(model: Callable[[Tensor], Tensor], images: Tensor) -> float:
    """Return the time of one pass."""
    start = time.perf_counter()
    with torch.no_grad():
        model(images)
    return time.perf_counter() - start


def inflated(plain: nn.Module, group: str) -> dict[str, nn.Module]:
    """Return the networks of a group by name."""
    order = ca.get_group(group).order
    networks: dict[str, nn.Module] = {}
    for name, relative in (("all relative poses", None), ("two", (0, order // 2)), ("the identity", (0,))):
        model = ca.equivariantize(plain, group, relative=relative, size=SIZE, verify=False).eval()
        networks |= {name: model, f"{name}, frozen": ca.freeze(model)}
    return networks


def main() -> None:
    """Measure and print one line per network."""
    options = tyro.cli(Options, description=__doc__)
    torch.manual_seed(0)
    plain = network(options.width).eval()
    images = torch.randn(options.batch, 1, SIZE, SIZE)
    for group in options.groups:
        order = ca.get_group(group).order
        models = inflated(plain, group)
        ratios: dict[str, list[float]] = {name: [] for name in models}
        for model in (plain, *models.values()):
            seconds(model, images)
        for _ in range(options.rounds):
            for name, model in models.items():
                # The plain network right before and after it, so that other work on the machine counts for both.
                before, own, after = (seconds(m, images) for m in (plain, model, plain))
                ratios[name].append(own / (0.5 * (before + after)))
        for name, values in ratios.items():
            ratio = statistics.median(values)
            print(f"{group}, {name}: {ratio:.2f} times the plain network, {ratio / order:.2f} per pose", flush=True)


if __name__ == "__main__":
    main()
