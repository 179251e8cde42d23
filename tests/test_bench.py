"""The benchmark code itself, on tiny sizes; nothing here looks at the clock."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path

import pytest
import torch
from benchmarks import speed
from rich.console import Console

from coattend import _timing, bench, cli
from coattend._timing import Measurement
from coattend.cli import main
from coattend.report.console import measurement_table


@pytest.fixture(autouse=True)
def _in_single() -> None:
    torch.set_default_dtype(torch.float32)


def shown(measurements: list[Measurement]) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(measurement_table(measurements))
    return console.file.getvalue()


def test_every_limit_has_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("e2cnn")
    monkeypatch.setattr(bench, "peak_resident", lambda *_: 1)  # starts processes; tested below
    measured = list(bench.measured_lines(bench.Setting(batch=2, rounds=2, compiled=False)))
    with_limit = {(m.kind, m.name): m.limit for m in measured if m.limit is not None}
    assert with_limit == {key: limit for key, limit in bench.LIMITS.items() if key[0] != "compiled"}
    text = shown(measured)
    assert "a-p4-CNN (literal formula) / p4-CNN" in text
    assert "at most" in text


def test_without_e2cnn_its_lines_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "find_spec", lambda _: None)
    monkeypatch.setattr(bench, "peak_resident", lambda *_: 1)
    measured = list(bench.measured_lines(bench.Setting(batch=2, rounds=1, compiled=False)))
    assert measured
    assert not [m for m in measured if "e2cnn" in m.name]


def test_networks_are_alike() -> None:
    images, _ = bench.random_batch(2, 28)
    ours, literal = bench.without_dropout(bench.ATTENTIVE).eval(), bench.literal_network().eval()
    assert sum(isinstance(module, bench.LiteralCoAttention) for module in literal.modules()) == 7
    literal.load_state_dict(ours.state_dict())
    torch.testing.assert_close(literal(images), ours(images), rtol=1e-4, atol=1e-5)
    assert bench.plain_network()(images).shape == ours(images).shape
    maps = [layer for layer in bench.plain_network() if isinstance(layer, torch.nn.Conv2d)]
    assert {layer.out_channels for layer in maps[:-1]} == {4 * bench.without_dropout("p4cnn").feature_channels[0]}


def test_saved_bytes_count_each_storage_once() -> None:
    x = torch.randn(2, 3, requires_grad=True)

    class Squares(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.sin()  # saves x
            return y * y  # saves y, twice

    assert _timing.saved_bytes(Squares(), x) == 2 * 24


def test_rounds_are_interleaved_and_begin_with_another_each_time() -> None:
    order: list[str] = []
    steps = {name: (lambda name=name: order.append(name)) for name in "abc"}
    seconds = _timing.interleaved(steps, rounds=3, warm_up=1)
    assert "".join(order) == "abc" + "abc" + "bca" + "cab"
    assert {name: len(times) for name, times in seconds.items()} == {"a": 3, "b": 3, "c": 3}


def test_ratios_are_taken_round_by_round_and_given_with_their_quartiles() -> None:
    below = [1.0, 2.0, 4.0, 8.0, 16.0]
    above = [ratio * seconds for ratio, seconds in zip([5.0, 1.0, 3.0, 4.0, 2.0], below, strict=True)]
    found = _timing.compared("time", "a / b", above, below, limit=3.5)
    assert (found.low, found.ratio, found.high, found.limit) == (2, 3, 4, 3.5)


@pytest.mark.slow
def test_peak_resident_size_holds_what_a_training_step_keeps() -> None:
    batch = 64
    kept = _timing.saved_bytes(bench.without_dropout("p4cnn"), bench.random_batch(batch, 28)[0])
    assert kept < bench.peak_resident("p4cnn", batch, 28) < 20 * kept


def test_results_are_written_with_versions_and_a_plot(tmp_path: Path) -> None:
    measured = list(speed.growth(batch=1, channels=1, size=2, rounds=1))
    measured.append(Measurement("training step", "a / b", 1.25, 1.0, 1.5, 1.2))
    path = tmp_path / "speed.csv"
    bench.write_csv(measured, path)
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(measured)
    assert rows[-1]["ratio"] == "1.2500"
    assert {row["torch"] for row in rows} == {torch.__version__}
    assert "over" in shown(measured)
    pytest.importorskip("matplotlib")
    speed.plot(measured, tmp_path / "speed.png")
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")


def test_the_program_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    few = [Measurement.exact("saved bytes", "a / b", 1.0, 1.5)]
    monkeypatch.setattr(bench, "measured_lines", lambda setting: iter(few))
    monkeypatch.setattr(sys, "argv", ["coattend", "bench", "--no-compiled"])
    with pytest.raises(SystemExit) as ended:
        main()
    torch.set_num_threads(1)
    assert ended.value.code == 0
    assert "saved bytes" in capsys.readouterr().out


def test_targets_are_checked_first(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no folder"):
        cli.networks.bench(csv=tmp_path / "nowhere" / "bench.csv")
