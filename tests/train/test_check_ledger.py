from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from coattend.train import collect

SCRIPT = Path(__file__).parents[2] / "tools" / "check_ledger.py"
SHORT = ("--data", "mini", "--recipe", "quick", "--set", "train_images=64", "--set", "test_images=40",
         "--set", "epochs=2")  # fmt: skip


def test_a_run_made_again_agrees_and_an_altered_curve_is_found(tmp_path: Path) -> None:
    train = [sys.executable, "-m", "coattend", "train", "z2cnn", *SHORT, "--seed", "3", "--folder", tmp_path / "runs"]
    subprocess.run(train, check=True, capture_output=True)
    (kept,) = collect(tmp_path / "runs", tmp_path / "docs")
    script = tmp_path / "tools" / SCRIPT.name  # beside the ledger that it is to read
    script.parent.mkdir()
    shutil.copy(SCRIPT, script)

    def check(*words: str) -> tuple[int, str]:
        done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True)
        assert not done.stderr
        return done.returncode, done.stdout

    assert check("2") == (0, f"{kept.stem}: the same, epochs 1 to 2\n")

    result = json.loads(kept.read_text())
    first, second, *rest = result["curves"]["train_loss"].split()
    altered = f"{float(second) * 1.0002:.5g}"
    result["curves"]["train_loss"] = " ".join([first, altered, *rest])
    kept.write_text(json.dumps(result))
    expected = f"{kept.stem}: train_loss of epoch 2: {altered} there, {second} here\n"
    assert check("2", "p4cnn", "seed3") == (1, expected)

    del result["curves"]
    kept.write_text(json.dumps(result))
    assert check("1") == (0, f"{kept.stem}: no curves were kept, cannot be compared\n")
    code, message = check("1", "resnet44")
    assert code == 2
    assert "resnet44" in message
