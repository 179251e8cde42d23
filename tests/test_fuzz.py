"""The programs of experiments/: their judge sees what it should, and what they once found stays mended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from experiments.hostile.kinds import Case, SilentAcceptanceError
from experiments.hostile.models import unchanged
from experiments.hostile.mutations import flip
from experiments.sandbox import judged, run_one

import coattend as ca

ROOT = Path(__file__).parent.parent


def _killed() -> tuple[str, str]:
    os.kill(os.getpid(), signal.SIGKILL)
    return "clear", ""


def _greedy() -> tuple[str, str]:
    return "clear", str(len(bytearray(b"x") * 2_000_000_000))


def _endless() -> tuple[str, str]:
    while True:
        pass


def test_the_sandbox_sees_how_an_action_ends() -> None:
    assert run_one(lambda: ("clear", "a line"))[:2] == ("clear", "a line")
    assert run_one(_killed).verdict == "crash"
    assert run_one(_greedy).verdict == "memory"
    assert run_one(_endless, seconds=1).verdict == "hang"


def test_only_the_library_s_own_value_errors_are_clear() -> None:
    with pytest.raises(ValueError, match="unknown group") as ours:
        ca.get_group("x")
    with pytest.raises(ValueError, match="invalid literal") as pythons:
        int("x")
    assert judged(ours.value)[0] == "clear"
    assert judged(pythons.value)[0] == "traceback"


def test_a_flipped_bit_of_a_weight_counts_as_silent_acceptance(tmp_path: Path) -> None:
    for name in ("healthy", "damaged"):
        ca.save_model(ca.create_model("p4cnn:width=1"), tmp_path / name)
    (tmp_path / "damaged").write_bytes((tmp_path / "healthy").read_bytes())
    unchanged(tmp_path / "damaged", tmp_path / "healthy")
    flip(tmp_path / "damaged", 999_999, 0)
    with pytest.raises(SilentAcceptanceError):
        unchanged(tmp_path / "damaged", tmp_path / "healthy")


def test_the_text_of_a_case_makes_it_again() -> None:
    case = Case("model", "edit_options", "load", ({"width": 10**30, "group": "[/red] \ud800"},))
    assert Case.parse(str(case)) == case


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", [("fuzz_files", "--kept", "--only", "model"), ("wrong_calls", "--only", "operators")]
)
def test_what_was_found_stays_mended(program: tuple[str, ...]) -> None:
    arguments = [sys.executable, "-m", f"experiments.{program[0]}", *program[1:]]
    found = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
