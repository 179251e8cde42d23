"""How time and memory are measured: interleaved, medians of ratios, never a time on its own."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = Callable[[], object]


@dataclass(frozen=True)
class Measurement:
    """A ratio, the middle half of the rounds around it, and what it may be at most."""

    kind: str
    name: str
    ratio: float
    low: float
    high: float
    limit: float | None = None

    @classmethod
    def exact(cls, kind: str, name: str, ratio: float, limit: float | None = None) -> Measurement:
        """A ratio that does not vary from round to round."""
        return cls(kind, name, ratio, ratio, ratio, limit)


def interleaved(steps: Mapping[str, Step], rounds: int, warm_up: int = 3) -> dict[str, list[float]]:
    """Seconds of each step, round by round; every round runs all of them, beginning with another one each time.

    What else the machine does meanwhile hits all alike, so that ratios within a round mean something where times do
    not.
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


def compared(kind: str, name: str, above: list[float], below: list[float], limit: float | None = None) -> Measurement:
    """The median over the rounds of one step's time by another's, with its quartiles."""
    ratios = sorted(a / b for a, b in zip(above, below, strict=True))
    quarter = len(ratios) // 4
    return Measurement(kind, name, statistics.median(ratios), ratios[quarter], ratios[-1 - quarter], limit)


def training_step(network: nn.Module, images: Tensor, labels: Tensor) -> Step:
    """Forward, backward and a step of plain gradient descent."""
    network.train()
    optimiser = torch.optim.SGD(network.parameters(), lr=1e-3)

    def step() -> None:
        optimiser.zero_grad()
        F.cross_entropy(network(images), labels).backward()
        optimiser.step()

    return step


def inference(network: nn.Module, images: Tensor) -> Step:
    """Forward alone, in evaluation mode."""
    network.eval()

    def step() -> None:
        with torch.inference_mode():
            network(images)

    return step


def saved_bytes(network: nn.Module, images: Tensor) -> int:
    """Bytes that a training forward keeps for the backward, each storage counted once, parameters left out."""
    parameters = {p.untyped_storage().data_ptr() for p in network.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = network.train()(images)  # alive until the sum is taken: freed storages would lend out their addresses
    total = sum(kept.values())
    del output
    return total


def peak_resident(expression: str, batch: int, size: int) -> int:
    """Largest resident size in bytes, beyond that of importing, of a fresh process that trains a network (Linux)."""
    program = (
        "import pathlib, re, torch, coattend.bench.networks as networks\n"
        "from coattend.bench.measure import training_step\n"
        # Not getrusage: its maximum is handed down from the parent process.
        "def peak(): return int(re.search(r'VmHWM:\\s*(\\d+)', pathlib.Path('/proc/self/status').read_text())[1])\n"
        f"torch.set_num_threads({torch.get_num_threads()})\n"
        "before = peak()\n"
        f"images, labels = networks.batch({batch}, {size})\n"
        f"step = training_step(networks.{expression}, images, labels)\n"
        "for _ in range(3): step()\n"
        "print(1024 * (peak() - before))\n"
    )
    finished = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return int(finished.stdout)
