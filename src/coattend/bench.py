"""Speed and memory as ratios measured in one run: what ``coattend bench`` prints."""

from __future__ import annotations

import csv
import importlib
import platform
import statistics
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coattend._timing import Measurement, Step, compared, inference, interleaved, saved_bytes, training_step
from coattend.models import create_model, list_models
from coattend.models.blocks import ConvBlock
from coattend.nn import CoAttention, DynamicGroupConv2d, GroupConv2d
from coattend.version import __version__

ATTENTIVE = "a_p4cnn:attention=output"
GENERATED = "e4-CNN / p4-CNN of its shape"
LIMITS = {
    ("training step", "p4-CNN / plain conv2d network"): 1.05,
    ("training step", "a-p4-CNN (output) / p4-CNN"): 1.20,
    ("training step", "a-DREN (slice) / DREN"): 2.0,
    ("training step", "p4-CNN / e2cnn's p4-CNN"): 1.02,
    ("inference", "a-p4-CNN (output) / p4-CNN"): 1.15,
    ("training step", GENERATED): 2.0,
    ("saved bytes", "a-p4-CNN (output) / p4-CNN"): 1.5,
    ("saved bytes", GENERATED): 2.0,
    ("building", "slowest of our networks / e2cnn's p4-CNN"): 0.5,
    ("compiled", "p4-CNN, compiled / eager"): 1.02,
    ("compiled", "a-p4-CNN (output), compiled / eager"): 1.02,
}


@dataclass(frozen=True)
class Setting:
    """Size and number of the measurements."""

    batch: int = 128
    size: int = 28
    rounds: int = 30
    compiled: bool = True  # compiling the networks takes minutes


def measured_lines(setting: Setting) -> Iterator[Measurement]:
    """Yield every line of the table as soon as it is measured; lines with e2cnn need it to be installed."""
    with_e2cnn = find_spec("e2cnn") is not None
    images, labels = random_batch(setting.batch, setting.size)
    yield from _timed("training step", lambda net: training_step(net, images, labels), setting.rounds, with_e2cnn)
    yield from _timed("inference", lambda net: inference(net, images), setting.rounds, with_e2cnn=False)
    yield from _memory(setting)
    if with_e2cnn:
        yield _building(min(setting.rounds, 7))
    if setting.compiled:
        yield from _compiled(setting)


def _timed(kind: str, step: Callable[[nn.Module], Step], rounds: int, with_e2cnn: bool) -> Iterator[Measurement]:
    """Measure networks in small groups: every further one evicts the caches and the allocator of those before it."""

    def seconds(networks: Mapping[str, nn.Module]) -> dict[str, list[float]]:
        return interleaved({name: step(net) for name, net in networks.items()}, rounds)

    times = seconds({"plain": plain_network(), "p4": without_dropout("p4cnn")})
    yield _line(kind, "p4-CNN / plain conv2d network", times["p4"], times["plain"])
    attentive = {"output": without_dropout(ATTENTIVE), "literal": literal_network()}
    times = seconds({"p4": without_dropout("p4cnn"), **attentive})
    yield _line(kind, "a-p4-CNN (output) / p4-CNN", times["output"], times["p4"])
    yield _line(kind, "a-p4-CNN (literal formula) / p4-CNN", times["literal"], times["p4"])
    times = seconds({"dren": without_dropout("dren"), "slice": without_dropout("a_dren")})
    yield _line(kind, "a-DREN (slice) / DREN", times["slice"], times["dren"])
    times = seconds({"generated": without_dropout("e4cnn"), "p4": p4_network_of_e4_shape()})
    yield _line(kind, GENERATED, times["generated"], times["p4"])
    if with_e2cnn:
        times = seconds({"p4": without_dropout("p4cnn"), "e2cnn": E2cnnNetwork()})
        yield _line(kind, "p4-CNN / e2cnn's p4-CNN", times["p4"], times["e2cnn"])


def _memory(setting: Setting) -> Iterator[Measurement]:
    images, _ = random_batch(setting.batch, setting.size)
    baseline = saved_bytes(without_dropout("p4cnn"), images)
    for title, network in (("output", without_dropout(ATTENTIVE)), ("literal formula", literal_network())):
        ratio = saved_bytes(network, images) / baseline
        yield _exact("saved bytes", f"a-p4-CNN ({title}) / p4-CNN", ratio)
    ratio = saved_bytes(without_dropout("a_dren"), images) / saved_bytes(without_dropout("dren"), images)
    yield _exact("saved bytes", "a-DREN (slice) / DREN", ratio)
    ratio = saved_bytes(without_dropout("e4cnn"), images) / saved_bytes(p4_network_of_e4_shape(), images)
    yield _exact("saved bytes", GENERATED, ratio)
    if sys.platform == "linux":
        for title, above, below in (
            ("a-p4-CNN (output) / p4-CNN", ATTENTIVE, "p4cnn"),
            ("a-DREN (slice) / DREN", "a_dren", "dren"),
        ):
            peak, baseline = (peak_resident(model, setting.batch, setting.size) for model in (above, below))
            yield _exact("peak resident", title, peak / baseline)


def _building(rounds: int) -> Measurement:
    """Measure construction, with what either library caches already cached."""
    ours = {name: (lambda name=name: create_model(name)) for name in list_models("*")}
    seconds = interleaved({**ours, "e2cnn": E2cnnNetwork}, rounds, warm_up=1)
    slowest = max(ours, key=lambda name: statistics.median(seconds[name]))
    return _line("building", "slowest of our networks / e2cnn's p4-CNN", seconds[slowest], seconds["e2cnn"])


def _compiled(setting: Setting) -> Iterator[Measurement]:
    images, labels = random_batch(setting.batch, setting.size)
    for title, name in (("p4-CNN", "p4cnn"), ("a-p4-CNN (output)", ATTENTIVE)):
        torch.compiler.reset()
        eager, compiled = without_dropout(name), without_dropout(name)
        compiled.compile(fullgraph=True)
        steps = {"eager": training_step(eager, images, labels), "compiled": training_step(compiled, images, labels)}
        seconds = interleaved(steps, setting.rounds)
        yield _line("compiled", f"{title}, compiled / eager", seconds["compiled"], seconds["eager"])


def _line(kind: str, name: str, seconds: Sequence[float], baseline: Sequence[float]) -> Measurement:
    return compared(kind, name, seconds, baseline, LIMITS.get((kind, name)))


def _exact(kind: str, name: str, ratio: float) -> Measurement:
    return Measurement.exact(kind, name, ratio, LIMITS.get((kind, name)))


def peak_resident(model: str, batch: int, size: int) -> int:
    """Return the largest resident size in bytes of a new process that trains a network, minus that of importing."""
    program = (
        "import pathlib, re, torch\n"
        "from coattend.bench import random_batch, training_step, without_dropout\n"
        # Not getrusage: its maximum is inherited from the parent process.
        "def peak(): return int(re.search(r'VmHWM:\\s*(\\d+)', pathlib.Path('/proc/self/status').read_text())[1])\n"
        f"torch.set_num_threads({torch.get_num_threads()})\n"
        "before = peak()\n"
        f"step = training_step(without_dropout({model!r}), *random_batch({batch}, {size}))\n"
        "for _ in range(3): step()\n"
        "print(1024 * (peak() - before))\n"
    )
    finished = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return int(finished.stdout)


def random_batch(images: int, size: int) -> tuple[Tensor, Tensor]:
    """Return random images and labels."""
    return torch.randn(images, 1, size, size), torch.arange(images) % 10


def without_dropout(model: str) -> nn.Module:
    """Return a network of the zoo without dropout, which the other networks do not have."""
    return create_model(model, dropout=0.0)


def plain_network(width: int = 40, kernel: int = 3) -> nn.Sequential:
    """Return the layers of p4-CNN as plain convolutions between as many maps (10 channels in 4 poses)."""
    layers: list[nn.Module] = []
    for number in range(1, 7):
        conv = nn.Conv2d(1 if number == 1 else width, width, kernel, padding=(kernel - 3) // 2)
        layers += [conv, nn.BatchNorm2d(width), nn.ReLU()]
        if number == 2:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Conv2d(width, 10, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def p4_network_of_e4_shape() -> nn.Module:
    """Return e4-CNN with 3x3 group convolutions between as many channels instead of generated filters."""
    network = without_dropout("e4cnn")
    for block in network.modules():
        if isinstance(block, ConvBlock) and isinstance(block.conv, DynamicGroupConv2d):
            channels = block.conv.out_channels
            block.conv = GroupConv2d(channels, channels, 3, block.conv.group, padding=1, bias=False)
    return network


class LiteralCoAttention(CoAttention):
    """[RH20] Eqs. 6-8 in tensor operations, which save every intermediate result for backward."""

    def forward(self, x: Tensor) -> Tensor:
        """Multiply the map by its mask."""
        logits = torch.einsum("bchyx,chg->bcgyx", x, self.matrix())
        softmax = torch.softmax(logits / self.group.order, dim=2)
        return softmax / softmax.amax(dim=2, keepdim=True) * x


def literal_network() -> nn.Module:
    """Return a-p4-CNN with the literal formula as its attention."""
    return create_model("a_p4cnn", attention=LiteralCoAttention, dropout=0.0)


class E2cnnNetwork(nn.Module):
    """p4-CNN in e2cnn: regular fields of C4, then ten scalar fields."""

    def __init__(self, width: int = 10) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an old package
            gspaces, enn = (importlib.import_module(f"e2cnn.{name}") for name in ("gspaces", "nn"))
            space = gspaces.Rot2dOnR2(4)
            self.image = enn.FieldType(space, [space.trivial_repr])
            regular = enn.FieldType(space, width * [space.regular_repr])
            layers: list[Any] = []
            for number in range(1, 7):
                source = self.image if number == 1 else regular
                layers += [enn.R2Conv(source, regular, kernel_size=3), enn.InnerBatchNorm(regular), enn.ReLU(regular)]
                if number == 2:
                    layers.append(enn.PointwiseMaxPool(regular, 2))
            layers.append(enn.R2Conv(regular, enn.FieldType(space, 10 * [space.trivial_repr]), kernel_size=4))
            self.layers = enn.SequentialModule(*layers)
        self.tensor = enn.GeometricTensor

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.layers(self.tensor(x, self.image)).tensor.flatten(1)


def write_csv(measurements: Sequence[Measurement], path: Path) -> None:
    """Write a row per ratio; every row names the versions and the processor."""
    versions = {
        "coattend": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "e2cnn": version("e2cnn") if find_spec("e2cnn") else "none",
        "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "threads": str(torch.get_num_threads()),
    }
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("kind", "name", "ratio", "low", "high", "limit", *versions))
        for m in measurements:
            limit = "" if m.limit is None else f"{m.limit:g}"
            ratios = (f"{value:.4f}" for value in (m.ratio, m.low, m.high))
            writer.writerow((m.kind, m.name, *ratios, limit, *versions.values()))
