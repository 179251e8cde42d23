"""The lines of ``coattend bench``, in the order in which they are measured."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from coattend._timing import Measurement, Step, compared, interleaved
from coattend.bench.comparisons import (
    BUILDING_LIMIT,
    COMPARISONS,
    COMPILED_LIMIT,
    E2CNN_LIMIT,
    LEADS,
    OUTPUT,
    attentive,
    p4cnn,
)
from coattend.bench.mode import Mode, resolved
from coattend.bench.networks import E2cnnNetwork, random_batch
from coattend.bench.process import peak_resident
from coattend.functional.layout import Format
from coattend.models import create_model
from coattend.models.paper import TABLE_1


@dataclass(frozen=True)
class Setting:
    """Size and number of the measurements, and the mode of the networks."""

    batch: int = 128
    size: int = 28
    rounds: int = 30
    format: Format = "auto"
    bf16: bool = True  # emulated, and slow, on processors without its instructions
    compiled: bool = True  # compiling the networks takes minutes


def measured_lines(setting: Setting) -> Iterator[Measurement]:
    """Yield every line of the table as soon as it is measured; lines with e2cnn need it to be installed."""
    with_e2cnn = find_spec("e2cnn") is not None
    modes = [Mode(resolved(setting.format), bf16) for bf16 in (False, True)[: 1 + setting.bf16]]
    yield from _modes(setting)
    for mode in modes:
        yield from _training(setting, mode)
    if with_e2cnn:
        yield _against_e2cnn(setting)
    for mode in modes:
        yield from _inference(setting, mode)
    yield from _memory(setting, modes[0])
    if with_e2cnn:
        yield _building(min(setting.rounds, 7))
    if setting.compiled:
        yield from _compiled(setting, modes[0])


def _modes(setting: Setting) -> Iterator[Measurement]:
    """Measure channels-last maps, and bfloat16, relative to torch's default format in float32."""
    images, labels = random_batch(setting.batch, setting.size)
    baseline = Mode("planes")
    for bf16 in (False, True)[: 1 + setting.bf16]:
        mode = Mode("channels_last", bf16)
        for lead in LEADS:
            above, below = (m.training_step(lead.network(), images, labels) for m in (mode, baseline))
            limit = lead.in_bf16 if bf16 else lead.in_float32
            yield _ratio(f"training step, {mode} / {baseline}", lead.name, above, below, setting.rounds, limit)


def _training(setting: Setting, mode: Mode) -> Iterator[Measurement]:
    # In pairs: every further network evicts the caches of the others.
    images, labels = random_batch(setting.batch, setting.size)
    for case in COMPARISONS:
        if case.in_bf16 or not mode.bf16:
            above, below = (mode.training_step(make(), images, labels) for make in (case.above, case.below))
            yield _ratio(f"training step, {mode}", case.name, above, below, setting.rounds, case.training)


def _inference(setting: Setting, mode: Mode) -> Iterator[Measurement]:
    images, _ = random_batch(setting.batch, setting.size)
    for case in COMPARISONS:
        if case.in_bf16 or not mode.bf16:
            above, below = (mode.inference(make(), images) for make in (case.above, case.below))
            yield _ratio(f"inference, {mode}", case.name, above, below, setting.rounds, case.inference)


def _against_e2cnn(setting: Setting) -> Measurement:
    """Measure both networks in torch's default format, the only one of e2cnn."""
    mode, batch = Mode("planes"), random_batch(setting.batch, setting.size)
    above, below = (mode.training_step(network, *batch) for network in (p4cnn(), E2cnnNetwork()))
    name = "p4-CNN / e2cnn's p4-CNN"
    return _ratio(f"training step, {mode}", name, above, below, setting.rounds, E2CNN_LIMIT)


def _memory(setting: Setting, mode: Mode) -> Iterator[Measurement]:
    images, _ = random_batch(setting.batch, setting.size)
    for case in COMPARISONS:
        above, below = (mode.saved_bytes(make(), images) for make in (case.above, case.below))
        yield Measurement.exact(f"saved bytes, {mode}", case.name, above / below, case.saved)
    if sys.platform == "linux":
        pairs = {OUTPUT: ("a_p4cnn:attention=output", "p4cnn"), "a-DREN (slice) / DREN": ("a_dren", "dren")}
        for name, models in pairs.items():
            above, below = (peak_resident(model, setting.batch, setting.size, mode.format) for model in models)
            yield Measurement.exact(f"peak resident, {mode}", name, above / below)


def _building(rounds: int) -> Measurement:
    """Measure construction, with what either library caches already cached."""
    ours = {name: (lambda name=name: create_model(name)) for name in TABLE_1}
    seconds = interleaved({**ours, "e2cnn": E2cnnNetwork}, rounds, warm_up=1)
    slowest = max(ours, key=lambda name: statistics.median(seconds[name]))
    name = "slowest network of Table 1 / e2cnn's p4-CNN"
    return compared("building", name, seconds[slowest], seconds["e2cnn"], BUILDING_LIMIT)


def _compiled(setting: Setting, mode: Mode) -> Iterator[Measurement]:
    batch = random_batch(setting.batch, setting.size)
    for name, make in (("p4-CNN", p4cnn), ("a-p4-CNN (output)", attentive)):
        torch.compiler.reset()
        eager, compiled = make(), make()
        compiled.compile(fullgraph=True)
        above, below = (mode.training_step(network, *batch) for network in (compiled, eager))
        kind = f"compiled / eager, training step, {mode}"
        yield _ratio(kind, name, above, below, setting.rounds, COMPILED_LIMIT)


def _ratio(kind: str, name: str, above: Step, below: Step, rounds: int, limit: float | None) -> Measurement:
    seconds = interleaved({"above": above, "below": below}, rounds)
    return compared(kind, name, seconds["above"], seconds["below"], limit)
