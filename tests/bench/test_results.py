"""Files of figures, the picture and the page that are made from them, and the program."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest
import torch
from benchmarks import block_memory, speed, speed_page

from coattend import bench, cli
from coattend._timing import Measurement
from coattend.cli import main

ROOT = Path(__file__).parents[2]
PAGE = "".join(
    f"<!-- begin {name}: x -->\nformer\n<!-- end {name} -->\nbetween\n" for name in ("ratios", "growth", "orders")
)


@pytest.fixture
def measured() -> list[Measurement]:
    torch.set_default_dtype(torch.float32)
    growth = list(speed.growth(batch=1, channels=1, size=2, rounds=1))
    return [
        Measurement("training step", "a / b", 1.25, 1.0, 1.5, 1.2),
        Measurement("training step", "c / d", 1.0212, 1.0, 1.5, 1.02),
        Measurement.exact("saved bytes", "e / f", 1.25, 1.25),
        *growth,
    ]


def test_results_are_written_with_versions_and_a_plot(measured: list[Measurement], tmp_path: Path) -> None:
    path = tmp_path / "speed.csv"
    bench.write_csv(measured, path)
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(measured)
    assert rows[0]["ratio"] == "1.2500"
    assert {row["torch"] for row in rows} == {torch.__version__}
    again, versions = bench.read_csv(path)
    assert again[:3] == measured[:3]
    assert versions["torch"] == torch.__version__
    pytest.importorskip("matplotlib")
    speed.plot(measured, tmp_path / "speed.png")
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_is_written_from_the_file(measured: list[Measurement], tmp_path: Path) -> None:
    path, page = tmp_path / "speed.csv", tmp_path / "speed.md"
    bench.write_csv(measured, path)
    page.write_text(PAGE)
    speed_page.write_page(path, page)
    text = page.read_text()
    assert "former" not in text
    assert text.count("between") == 3
    assert "| a / b | **1.25** | 1.00 to 1.50 | 1.20 |" in text
    assert "| c / d | **1.0212** | 1.00 to 1.50 | 1.02 |" in text  # 1.02 would not look like a miss
    assert "| e / f | 1.25 |  | 1.25 |" in text
    assert "Missed limits, in bold: 2 of 3." in text
    assert "| order | 4 | 8 | 16 | 32 |" in text
    assert "| order, from 4 | 2: " in text
    speed_page.write_page(path, page)
    assert page.read_text() == text
    page.write_text("no markers")
    with pytest.raises(ValueError, match="<!-- begin ratios -->"):
        speed_page.write_page(path, page)


def test_the_page_has_the_figures_of_the_file() -> None:
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    written = speed_page.with_tables(page, ROOT / "results" / "speed.csv")
    assert page == written, "python -m benchmarks.speed_page writes the tables again"


def test_the_peak_of_a_transformer_block_is_recorded_and_within_its_limit() -> None:
    setting = block_memory.Setting()
    assert (setting.batch, setting.group, setting.size, block_memory.LIMIT) == (8, "D4", 64, 1.2)
    lines, _ = bench.read_csv(ROOT / "results" / "speed.csv")
    peaks = [m for m in lines if m.name == block_memory.NAME]
    assert [m.limit for m in peaks] == [block_memory.LIMIT] * 2
    assert not any(m.is_over for m in peaks)


def test_a_page_without_a_file_is_refused() -> None:
    with pytest.raises(ValueError, match="expects --csv FILE"):
        speed.main(page=ROOT / "docs" / "speed.md")


def test_a_page_that_does_not_exist_is_refused_before_measuring(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.md, which is no file"):
        speed.main(csv=tmp_path / "speed.csv", page=tmp_path / "none.md")


def test_the_program_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    settings: list[bench.Setting] = []

    def few(setting: bench.Setting) -> list[Measurement]:
        settings.append(setting)
        return [Measurement.exact("saved bytes", "a / b", 1.0, 1.5)]

    monkeypatch.setattr(bench, "measured_lines", few)
    monkeypatch.setattr(bench, "prepare_process", lambda: None)
    monkeypatch.setattr(sys, "argv", ["coattend", "bench", "--no-compiled", "--no-bf16", "--format", "planes"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert settings == [bench.Setting(format="planes", bf16=False, compiled=False)]
    assert "saved bytes" in capsys.readouterr().out


def test_targets_are_checked_first(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no folder"):
        cli.networks.bench(csv=tmp_path / "nowhere" / "bench.csv")
