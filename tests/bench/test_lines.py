"""The lines of the benchmark on tiny sizes; nothing here looks at the clock."""

from __future__ import annotations

import io
from collections.abc import Mapping

import pytest
import torch
from rich.console import Console

from coattend._timing import Measurement, Step
from coattend.bench import Setting, lines, measured_lines
from coattend.report.console import measurement_table

F32, BF16 = "channels-last float32", "channels-last bf16"
TRAINING, INFERENCE = f"training step, {F32}", f"inference, {F32}"
LIMITS = {
    (f"training step, {F32} / planes float32", "p4-CNN"): 0.75,
    (f"training step, {BF16} / planes float32", "p4-CNN"): 0.5,
    (TRAINING, "p4-CNN / plain conv2d network"): 1.02,
    (TRAINING, "a-p4-CNN (output) / p4-CNN"): 1.08,
    (TRAINING, "a-p4-CNN (slice) / p4-CNN"): 1.5,
    (TRAINING, "a-DREN (slice) / DREN"): 1.5,
    (TRAINING, "p4-CNN (gates) / p4-CNN"): 1.3,
    (TRAINING, "p4-CNN (pose self-attention) / p4-CNN"): 2.0,
    (TRAINING, "e4-CNN (generated filters) / p4-CNN of its shape"): 2.0,
    (f"training step, {BF16}", "p4-CNN / plain conv2d network"): 1.02,
    (f"training step, {BF16}", "a-p4-CNN (output) / p4-CNN"): 1.08,
    (f"training step, {BF16}", "a-p4-CNN (slice) / p4-CNN"): 1.5,
    ("training step, planes float32", "p4-CNN / e2cnn's p4-CNN"): 1.02,
    (INFERENCE, "p4-CNN / plain conv2d network"): 1.0,
    (INFERENCE, "a-p4-CNN (output) / p4-CNN"): 1.05,
    (INFERENCE, "a-p4-CNN (slice) / p4-CNN"): 1.5,
    (INFERENCE, "a-DREN (slice) / DREN"): 1.5,
    (f"inference, {BF16}", "p4-CNN / plain conv2d network"): 1.0,
    (f"inference, {BF16}", "a-p4-CNN (output) / p4-CNN"): 1.05,
    (f"inference, {BF16}", "a-p4-CNN (slice) / p4-CNN"): 1.5,
    (f"saved bytes, {F32}", "a-p4-CNN (output) / p4-CNN"): 1.25,
    (f"saved bytes, {F32}", "e4-CNN (generated filters) / p4-CNN of its shape"): 2.0,
    ("building", "slowest network of Table 1 / e2cnn's p4-CNN"): 0.5,
}


@pytest.fixture(autouse=True)
def _run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every step once, in single precision, and start no processes."""

    def once(steps: Mapping[str, Step], rounds: int, warm_up: int = 3) -> dict[str, list[float]]:
        for step in steps.values():
            step()
        return {name: [float(number)] * rounds for number, name in enumerate(steps, start=1)}

    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(lines, "interleaved", once)
    monkeypatch.setattr(lines, "peak_resident", lambda *_: 1)


def shown(measurements: list[Measurement], width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(measurement_table(measurements))
    return console.file.getvalue()


def test_every_limit_has_its_line_and_fits_a_terminal() -> None:
    pytest.importorskip("e2cnn")
    measured = list(measured_lines(Setting(batch=2, rounds=2, format="channels_last", compiled=False)))
    assert {(m.kind, m.name): m.limit for m in measured if m.limit is not None} == LIMITS
    rows = [row.strip() for row in shown(measured, 100).splitlines()]
    for m in measured:
        assert m.kind in rows
        assert any(row.startswith(f"{m.name} ") for row in rows)


def test_the_format_is_a_choice_and_lines_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "find_spec", lambda _: None)
    monkeypatch.setattr(lines, "COMPARISONS", lines.COMPARISONS[:2])
    measured = list(measured_lines(Setting(batch=2, rounds=1, format="planes", bf16=False, compiled=False)))
    assert {m.kind for m in measured if not m.kind.startswith("peak")} == {
        "training step, channels-last float32 / planes float32",
        *(f"{what}, planes float32" for what in ("training step", "inference", "saved bytes")),
    }
    assert not [m for m in measured if "e2cnn" in m.name]


def test_a_missed_limit_is_marked() -> None:
    within, over = Measurement.exact("time", "a / b", 1.2, 1.2), Measurement.exact("time", "c / d", 1.3, 1.2)
    assert not Measurement.exact("time", "e / f", 9.0).is_over
    text = shown([within, over], 80)
    assert [line.split()[-1] for line in text.splitlines() if "/" in line] == ["ok", "over"]
    assert text.count("time") == 1
