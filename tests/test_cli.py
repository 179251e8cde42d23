"""The verbs, run as a user runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import coattend as ca


def coattend(*arguments: str, width: int = 80) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": str(width), "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-m", "coattend", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, encoding="utf-8", check=False)


def test_models_prints_all_with_counts_and_a_note_for_each_difference() -> None:
    run = coattend("models")
    assert run.returncode == 0
    for name in ca.list_models():
        (line,) = [line for line in run.stdout.splitlines() if line.split()[:1] == [name]]
        count = sum(p.numel() for p in ca.create_model(name).parameters())
        assert f"{count:,}" in line
        assert ca.model_entry(name).published_count in line
    assert "24,680" in run.stdout
    assert "truncates" in run.stdout
    assert max(map(len, run.stdout.splitlines())) <= 80


def test_models_takes_a_pattern() -> None:
    assert "resnet20" not in coattend("models", "*mnist*", "--help").stderr
    run = coattend("models", "dren*")
    assert "dren_maxpool" in run.stdout
    assert "p4cnn" not in run.stdout
    bad = coattend("models", "xyz*")
    assert (bad.returncode, bad.stderr.startswith("coattend: no model matches 'xyz*'")) == (2, True)


def test_check_passes_fails_and_explains(tmp_path: Path) -> None:
    sound = coattend("check", "a_p4cnn:width=4")
    assert sound.returncode == 0
    assert "turn 270°" in sound.stdout
    assert "exact at this size" in sound.stdout
    broken = coattend("check", "p4_allcnn:width=4")
    assert broken.returncode == 1
    assert "stride against size" in broken.stdout
    assert "29 x 29" in broken.stdout.replace("\n", " ")
    plain = coattend("check", "z2cnn:width=4")
    assert plain.returncode == 1
    assert "a plain convolution" in plain.stdout
    ca.save_model(ca.create_model("a_p4cnn", width=4), tmp_path / "m.safetensors")
    assert coattend("check", str(tmp_path / "m.safetensors")).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("check", "a_p4cn"), "did you mean a_p4cnn"),
        (("check", "absent.safetensors"), "there is no file absent.safetensors"),
        (("check", "p4cnn", "--group", "p6"), "unknown group 'p6'"),
        (("check", "p4cnn", "--size", "5"), "larger than the padded map of 1 x 1; pass larger images"),
    ],
)
def test_mistakes_end_in_one_line_and_exit_code_2(arguments: tuple[str, ...], message: str) -> None:
    run = coattend(*arguments)
    assert run.returncode == 2
    assert message in run.stderr
    assert "Traceback" not in run.stderr


def test_version() -> None:
    assert coattend("--version").stdout.strip() == f"coattend {ca.__version__}"
