"""The lines of the table: every ratio that has a limit, and the literal formula and memory beside them."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import nn

from coattend.bench import networks
from coattend.bench.measure import (
    Measurement,
    Step,
    compared,
    inference,
    interleaved,
    peak_resident,
    saved_bytes,
    training_step,
)
from coattend.models import create_model, list_models

ATTENTIVE = "a_p4cnn:attention=output"
LIMITS = {
    ("training step", "p4-CNN / plain conv2d network"): 1.05,
    ("training step", "a-p4-CNN (output) / p4-CNN"): 1.20,
    ("training step", "a-DREN (slice) / DREN"): 2.0,
    ("training step", "p4-CNN / e2cnn's p4-CNN"): 1.02,
    ("inference", "a-p4-CNN (output) / p4-CNN"): 1.15,
    ("saved bytes", "a-p4-CNN (output) / p4-CNN"): 1.5,
    ("building", "slowest of our networks / e2cnn's p4-CNN"): 0.5,
    ("compiled", "p4-CNN, compiled / eager"): 1.02,
    ("compiled", "a-p4-CNN (output), compiled / eager"): 1.02,
}


@dataclass(frozen=True)
class Setting:
    """What is measured, and how often."""

    batch: int = 128
    size: int = 28
    rounds: int = 30
    compiled: bool = True  # building the compiled networks takes minutes


def measured_lines(setting: Setting) -> Iterator[Measurement]:
    """Every line, as soon as it is measured; lines for which e2cnn is needed and missing are left out."""
    with_e2cnn = find_spec("e2cnn") is not None
    images, labels = networks.batch(setting.batch, setting.size)
    yield from _timed("training step", lambda net: training_step(net, images, labels), setting.rounds, with_e2cnn)
    yield from _timed("inference", lambda net: inference(net, images), setting.rounds, with_e2cnn=False)
    yield from _memory(setting)
    if with_e2cnn:
        yield _building(min(setting.rounds, 7))
    if setting.compiled:
        yield from _compiled(setting)


def _timed(kind: str, step: Callable[[nn.Module], Step], rounds: int, with_e2cnn: bool) -> Iterator[Measurement]:
    """Contestants meet in small groups: every further one empties the caches and the allocator of those before it."""

    def seconds(contestants: Mapping[str, nn.Module]) -> dict[str, list[float]]:
        return interleaved({name: step(net) for name, net in contestants.items()}, rounds)

    times = seconds({"plain": networks.plain(), "p4": networks.model("p4cnn")})
    yield _line(kind, "p4-CNN / plain conv2d network", times, "p4", "plain")
    times = seconds(_attentive())
    yield _line(kind, "a-p4-CNN (output) / p4-CNN", times, "output", "p4")
    yield _line(kind, "a-p4-CNN (literal formula) / p4-CNN", times, "literal", "p4")
    times = seconds({"dren": networks.model("dren"), "slice": networks.model("a_dren")})
    yield _line(kind, "a-DREN (slice) / DREN", times, "slice", "dren")
    if with_e2cnn:
        times = seconds({"p4": networks.model("p4cnn"), "e2cnn": e2cnn_p4cnn()})
        yield _line(kind, "p4-CNN / e2cnn's p4-CNN", times, "p4", "e2cnn")


def _attentive() -> dict[str, nn.Module]:
    return {
        "p4": networks.model("p4cnn"),
        "output": networks.model(ATTENTIVE),
        "literal": networks.literal(ATTENTIVE),
    }


def _memory(setting: Setting) -> Iterator[Measurement]:
    images, _ = networks.batch(setting.batch, setting.size)
    name, sliced = "a-p4-CNN (output) / p4-CNN", "a-DREN (slice) / DREN"

    def kept(network: nn.Module) -> int:
        return saved_bytes(network, images)

    below = kept(networks.model("p4cnn"))
    ratio = kept(networks.model(ATTENTIVE)) / below
    yield Measurement.exact("saved bytes", name, ratio, LIMITS["saved bytes", name])
    ratio = kept(networks.literal(ATTENTIVE)) / below
    yield Measurement.exact("saved bytes", "a-p4-CNN (literal formula) / p4-CNN", ratio)
    ratio = kept(networks.model("a_dren")) / kept(networks.model("dren"))
    yield Measurement.exact("saved bytes", sliced, ratio)

    if sys.platform != "linux":
        return

    def resident(model: str) -> int:
        return peak_resident(f"model({model!r})", setting.batch, setting.size)

    yield Measurement.exact("peak resident", name, resident(ATTENTIVE) / resident("p4cnn"))
    yield Measurement.exact("peak resident", sliced, resident("a_dren") / resident("dren"))


def _building(rounds: int) -> Measurement:
    """Both with whatever they cache already cached."""
    ours = {name: (lambda name=name: create_model(name)) for name in list_models("*")}
    seconds = interleaved({**ours, "e2cnn": e2cnn_p4cnn}, rounds, warm_up=1)
    slowest = max(ours, key=lambda name: statistics.median(seconds[name]))
    return _line("building", "slowest of our networks / e2cnn's p4-CNN", seconds, slowest, "e2cnn")


def _compiled(setting: Setting) -> Iterator[Measurement]:
    images, labels = networks.batch(setting.batch, setting.size)
    for title, name in (("p4-CNN", "p4cnn"), ("a-p4-CNN (output)", ATTENTIVE)):
        torch.compiler.reset()
        eager, compiled = networks.model(name), networks.model(name)
        compiled.compile(fullgraph=True)
        steps = {
            "eager": training_step(eager, images, labels),
            "compiled": training_step(compiled, images, labels),
        }
        seconds = interleaved(steps, setting.rounds)
        yield _line("compiled", f"{title}, compiled / eager", seconds, "compiled", "eager")


def _line(kind: str, name: str, seconds: dict[str, list[float]], above: str, below: str) -> Measurement:
    return compared(kind, name, seconds[above], seconds[below], LIMITS.get((kind, name)))


def e2cnn_p4cnn() -> nn.Module:
    """Imported late: it takes seconds, and may be missing."""
    from coattend.bench.e2cnn_networks import P4CNN

    return P4CNN()
