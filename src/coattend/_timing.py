"""Time and memory of networks, measured as ratios within one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = Callable[[], object]


@dataclass(frozen=True)
class Measurement:
    """A ratio, the quartiles of the rounds, and the largest ratio allowed."""

    kind: str
    name: str
    ratio: float
    low: float
    high: float
    limit: float | None = None

    @classmethod
    def exact(cls, kind: str, name: str, ratio: float, limit: float | None = None) -> Measurement:
        """Return a ratio that does not vary from round to round."""
        return cls(kind, name, ratio, ratio, ratio, limit)

    @property
    def is_over(self) -> bool:
        """Whether the ratio exceeds its limit."""
        return self.limit is not None and self.ratio > self.limit


def interleaved(steps: Mapping[str, Step], rounds: int, warm_up: int = 3) -> dict[str, list[float]]:
    """Return the seconds of each step in each round; every round runs all steps and starts with another one.

    Other load on the machine affects all steps of a round alike, so that ratios within a round are meaningful where
    times are not.
    """
    names = list(steps)
    for name in names:
        for _ in range(warm_up):
            steps[name]()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            start = time.perf_counter()
            steps[name]()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def compared(
    kind: str, name: str, seconds: Sequence[float], baseline: Sequence[float], limit: float | None = None
) -> Measurement:
    """Return the median over rounds of a step's time divided by the baseline's, with its quartiles."""
    ratios = sorted(a / b for a, b in zip(seconds, baseline, strict=True))
    quarter = len(ratios) // 4
    return Measurement(kind, name, statistics.median(ratios), ratios[quarter], ratios[-1 - quarter], limit)


def training_step(network: nn.Module, images: Tensor, labels: Tensor, bf16: bool = False) -> Step:
    """Return a step of forward, backward and plain gradient descent; ``bf16`` runs forward under autocast."""
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        with _precision(bf16):
            loss = F.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()

    return step


def inference(network: nn.Module, images: Tensor, bf16: bool = False) -> Step:
    """Return a step of forward in evaluation mode; ``bf16`` runs it under autocast."""
    network.eval()

    def step() -> None:
        with torch.inference_mode(), _precision(bf16):
            network(images)

    return step


def _precision(bf16: bool) -> AbstractContextManager[object]:
    return torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext()  # nothing: the caller may have its own


def saved_bytes(network: nn.Module, images: Tensor) -> int:
    """Return the bytes that forward saves for backward, each storage counted once, without parameters."""
    parameters = {p.untyped_storage().data_ptr() for p in network.parameters()}
    storages: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        output = network.train()(images)  # alive until the sum is taken: addresses of freed storages are used again
    total = sum(storages.values())
    del output
    return total
