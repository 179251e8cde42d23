from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from coattend.report.ledger import RUNS, collect
from coattend.train.record import write_records

SCRIPT = Path(__file__).parents[2] / "tools" / "check_ledger.py"
SHORT = ("--data", "mini", "--recipe", "quick", "--set", "train_images=64", "--set", "test_images=40",
         "--set", "epochs=2")  # fmt: skip


@pytest.mark.slow
def test_a_run_made_again_agrees_and_an_altered_curve_is_found(tmp_path: Path) -> None:
    train = [sys.executable, "-m", "coattend", "train", "z2cnn", *SHORT, "--seed", "3", "--folder", tmp_path / "runs"]
    subprocess.run(train, check=True, capture_output=True)
    results = tmp_path / "results"
    (record,) = collect(tmp_path / "runs", results)
    script = tmp_path / "tools" / SCRIPT.name  # beside the ledger that it is to read
    script.parent.mkdir()
    shutil.copy(SCRIPT, script)

    def check(*words: str) -> tuple[int, str]:
        done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True)
        assert not done.stderr
        return done.returncode, done.stdout

    assert check("2") == (0, f"{record.command}: the same, epochs 1 to 2\n")

    first, second = record.curves["train_loss"]
    assert first is not None
    assert second is not None
    altered = float(f"{second * 1.0002:.5g}")
    write_records(results / RUNS, [replace(record, curves={**record.curves, "train_loss": (first, altered)})])
    expected = f"{record.command}: train_loss of epoch 2: {altered} there, {second} here\n"
    assert check("2", "recipe quick", "seed 3") == (1, expected)

    write_records(results / RUNS, [replace(record, curves={})])
    assert check("1") == (0, f"{record.command}: no curves were recorded, cannot be compared\n")
    code, message = check("1", "quick", "resnet44")
    assert code == 2
    assert "resnet44" in message
