"""Building the kernels: once, safely with several processes, and never at the price of a failure."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import coattend as ca
from coattend.functional import co_attention, native

USE = """
import torch, coattend as ca
torch.manual_seed(0)
x = torch.randn(2, 3, 4, 5, 5, requires_grad=True)
for _ in range(3):
    y = ca.functional.co_attention(x, torch.ones(3, 4), ca.cyclic(4))
    y.square().sum().backward()
print(round(float(y.detach().sum()), 3), round(float(x.grad.sum()), 3))
"""


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty cache, and no kernels loaded."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native.library.cache_clear()
    yield tmp_path / "coattend" / "kernels"
    native.library.cache_clear()


def started(environment: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", USE]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env={**os.environ, **environment}, **pipes)


def test_two_processes_build_at_once_and_leave_one_library(tmp_path: Path) -> None:
    processes = [started({"XDG_CACHE_HOME": str(tmp_path)}) for _ in range(2)]
    outputs = [process.communicate() for process in processes]
    assert [error for _, error in outputs] == ["", ""]
    assert outputs[0] == outputs[1]
    (library,) = (tmp_path / "coattend" / "kernels").iterdir()
    assert library.name.startswith("kernels-")
    assert library.parent.stat().st_mode & 0o077 == 0  # what is loaded here, only the user may write


def test_without_a_compiler_results_are_the_same_and_one_notice_says_so(tmp_path: Path) -> None:
    bare = started({"XDG_CACHE_HOME": str(tmp_path), "PATH": str(tmp_path), "CXX": ""})
    output, error = bare.communicate()
    assert error.count("fused co-attention kernel is not available (no C++ compiler on the path)") == 1
    assert "install a C++ compiler" in error
    assert output == started({}).communicate()[0]


def test_a_compiler_that_fails_is_no_failure(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "false")
    assert native.library() is None
    assert "kernel is not available" in caplog.text
    assert co_attention(torch.randn(1, 2, 4, 3, 3), torch.randn(2, 4), ca.cyclic(4)).shape == (1, 2, 4, 3, 3)


def test_a_damaged_library_is_no_failure(fresh: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = native.build()
    path.write_bytes(b"not a library")
    assert native.library() is None
    assert "kernel is not available" in caplog.text


def test_kernels_can_be_switched_off(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("COATTEND_KERNELS", "off")
    with caplog.at_level(logging.INFO):
        assert native.library() is None
    assert caplog.text == ""
    assert not fresh.exists()


def test_the_second_build_is_a_look_into_the_cache(fresh: Path) -> None:
    first = native.build()
    stamp = first.stat().st_mtime_ns
    assert native.build() == first
    assert first.stat().st_mtime_ns == stamp
