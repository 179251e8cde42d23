"""Building the kernels: once, safely with several processes, and never at the price of a failure."""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import coattend as ca
from coattend.functional import co_attention, kernel_cache, native

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
    """An empty cache, no kernels loaded, and a source with the same functions that is compiled in no time."""
    source = tmp_path / "kernels.cpp"
    source.write_text("".join(f'extern "C" long {name}() {{ return 64; }}\n' for name in native.FUNCTIONS))
    monkeypatch.setattr(kernel_cache, "SOURCE", source)
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
    assert error.count("fused co-attention kernel is not available (no C++ compiler on the path; install") == 1
    assert "install a C++ compiler" in error
    assert output == started({}).communicate()[0]


def test_a_compiler_that_fails_is_no_failure(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "false")
    assert native.library() is None
    assert "kernel is not available" in caplog.text
    assert co_attention(torch.randn(1, 2, 4, 3, 3), torch.randn(2, 4), ca.cyclic(4)).shape == (1, 2, 4, 3, 3)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def flip_a_bit(path: Path) -> None:
    code = bytearray(path.read_bytes())
    code[len(code) // 2] ^= 1
    path.write_bytes(code)


def let_others_write(path: Path) -> None:
    path.chmod(0o777)


def give_away(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    os.chown(path, 65534, 65534)


def make_a_link(path: Path) -> None:
    path.rename(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))


@pytest.mark.parametrize("spoil", [truncate, flip_a_bit, let_others_write, give_away, make_a_link])
def test_a_library_that_was_changed_or_can_be_is_built_again(
    spoil: Callable[[Path], None], fresh: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = kernel_cache.kernels()
    whole = path.read_bytes()
    spoil(path)
    assert native.library() is not None
    assert caplog.text == ""
    assert path.read_bytes() == whole
    status = path.lstat()
    assert (status.st_uid, status.st_mode & 0o022) == (os.geteuid(), 0)


def test_a_library_without_the_functions_is_built_again(fresh: Path, tmp_path: Path) -> None:
    path = kernel_cache.kernels()
    subprocess.run(["g++", "-shared", "-x", "c++", "/dev/null", "-o", tmp_path / "empty.so"], check=True)
    digest = hashlib.sha256((tmp_path / "empty.so").read_bytes()).hexdigest()
    path.unlink()
    os.replace(tmp_path / "empty.so", path.with_name(f"{path.stem[:-64]}{digest}.so"))
    assert native.library() is not None
    assert list(fresh.iterdir()) == [path]


def test_a_folder_that_others_can_write_to_is_closed(fresh: Path) -> None:
    fresh.mkdir(parents=True)
    fresh.chmod(0o777)
    fresh.parent.chmod(0o777)
    kernel_cache.kernels()
    assert fresh.stat().st_mode & 0o077 == fresh.parent.stat().st_mode & 0o077 == 0


def test_a_folder_of_another_user_is_not_used(fresh: Path, caplog: pytest.LogCaptureFixture) -> None:
    fresh.mkdir(parents=True)
    give_away(fresh)
    assert native.library() is None
    assert "belongs to another user; set XDG_CACHE_HOME" in caplog.text
    assert list(fresh.iterdir()) == []


def test_without_a_home_folder_there_is_a_notice(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert native.library() is None
    assert "set XDG_CACHE_HOME" in caplog.text


def test_a_compiler_that_hangs_is_ended_with_its_children(
    fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\nsleep 60 &\nwait\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(kernel_cache, "SECONDS", 0.5)
    start = time.monotonic()
    assert native.library() is None
    assert time.monotonic() - start < 20
    assert "timed out after 0.5 seconds" in caplog.text


def test_the_compiler_may_be_a_command_of_several_words(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "env LANG=C g++")
    assert native.library() is not None
    native.library.cache_clear()
    monkeypatch.setenv("CXX", "g++ '")
    assert native.library() is None
    assert "is not a command: No closing quotation" in caplog.text


def test_what_a_killed_build_has_left_is_removed_and_a_running_one_left_alone(fresh: Path) -> None:
    old, running = fresh / "unfinished-old", fresh / "unfinished-running"
    for folder in (old, running):
        folder.mkdir(parents=True)
    os.utime(old, (0, 0))
    kernel_cache.kernels()
    assert not old.exists()
    assert running.exists()


def test_kernels_can_be_switched_off(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("COATTEND_KERNELS", "off")
    with caplog.at_level(logging.INFO):
        assert native.library() is None
    assert caplog.text == ""
    assert not fresh.exists()


def test_the_second_build_is_a_look_into_the_cache(fresh: Path) -> None:
    first = kernel_cache.kernels()
    stamp = first.stat().st_mtime_ns
    assert kernel_cache.kernels() == first
    assert first.stat().st_mtime_ns == stamp
