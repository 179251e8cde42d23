from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from coattend.cli import training
from coattend.train import loop, memory

SCRIPT = """
import sys, torch
from coattend.train.memory import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

before = resident()
x = torch.ones(50_000_000)
assert resident() - before > 190_000_000
del x
print(resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left as they are")
def test_freed_memory_stays_only_if_asked_for() -> None:
    left = {
        word: int(subprocess.run([sys.executable, "-c", SCRIPT, word], capture_output=True, check=True).stdout)
        for word in ("keep", "return")
    }
    assert left["keep"] > 190_000_000
    assert left["return"] < 10_000_000


def test_only_the_command_line_changes_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    monkeypatch.setattr(memory, "keep_freed_memory", lambda: calls.append(True))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for accelerator, expected in (("cuda", 0), ("cpu", 1), ("auto", 2)):
        training.keep_memory(accelerator)
        assert len(calls) == expected
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    training.keep_memory("auto")
    assert len(calls) == 2
    assert not hasattr(loop, "keep_freed_memory")
