"""The build of the kernels: explicit, once, safe with several processes, and never a reason to fail."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import coattend as ca
from coattend.functional import build_kernels, co_attention
from coattend.functional._kernels import build, cpu

USE = """
import torch, coattend as ca
ca.functional.build_kernels()
torch.manual_seed(0)
x = torch.randn(2, 3, 4, 5, 5, requires_grad=True)
for _ in range(3):
    y = ca.functional.co_attention(x, torch.ones(3, 4), ca.cyclic(4))
    y.square().sum().backward()
print(round(float(y.detach().sum()), 3), round(float(x.grad.sum()), 3))
"""


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, no kernels loaded, and two sources with the same functions that are compiled in no time."""
    sources = (tmp_path / "first.cpp", tmp_path / "second.cpp")
    for source, names in zip(sources, (cpu.FUNCTIONS[:1], cpu.FUNCTIONS[1:]), strict=True):
        source.write_text("".join(f'extern "C" long {name}() {{ return 64; }}\n' for name in names))
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setattr(cpu, "STATE", cpu.State())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "coattend" / "kernels"


def started(environment: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", USE]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env={**os.environ, **environment}, **pipes)


@pytest.mark.slow
def test_two_processes_build_at_once_and_leave_one_library(tmp_path: Path) -> None:
    processes = [started({"XDG_CACHE_HOME": str(tmp_path)}) for _ in range(2)]
    outputs = [process.communicate() for process in processes]
    assert outputs[0][0] == outputs[1][0]
    for _, error in outputs:
        assert error.count("\n") == error.count("building the C++ kernels, once") <= 1
    (library,) = (tmp_path / "coattend" / "kernels").iterdir()
    assert library.name.startswith("kernels-")
    assert library.parent.stat().st_mode & 0o077 == 0  # what is loaded here, only the user may write


@pytest.fixture
def attended() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A map, vectors, and what the kernels of this process make of them."""
    x, weights = torch.randn(2, 3, 4, 5, 5), torch.randn(3, 4)
    return x, weights, co_attention(x, weights, ca.cyclic(4))


def test_without_a_compiler_results_are_the_same_and_one_notice_says_so(
    attended: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    fresh: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", str(fresh))
    x, weights, expected = attended
    for _ in range(2):
        assert not build_kernels()
        torch.testing.assert_close(co_attention(x, weights, ca.cyclic(4)), expected)
    assert caplog.text.count("kernel is not available (no C++ compiler on the path; install a C++ compiler") == 1


def test_a_compiler_that_fails_is_no_failure(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "false")
    assert not build_kernels()
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
    path = build.build()
    whole = path.read_bytes()
    spoil(path)
    caplog.clear()
    assert build_kernels()
    assert [record.getMessage()[:34] for record in caplog.records] == ["coattend: building the C++ kernels"]
    assert path.read_bytes() == whole
    status = path.lstat()
    assert (status.st_uid, status.st_mode & 0o022) == (os.geteuid(), 0)


def test_a_library_without_the_functions_is_built_again(fresh: Path, tmp_path: Path) -> None:
    path = build.build()
    subprocess.run(["g++", "-shared", "-x", "c++", "/dev/null", "-o", tmp_path / "empty.so"], check=True)
    digest = hashlib.sha256((tmp_path / "empty.so").read_bytes()).hexdigest()
    path.unlink()
    os.replace(tmp_path / "empty.so", path.with_name(f"{path.stem[:-64]}{digest}.so"))
    assert build_kernels()
    assert list(fresh.iterdir()) == [path]


def test_a_folder_that_others_can_write_to_is_closed(fresh: Path) -> None:
    fresh.mkdir(parents=True)
    fresh.chmod(0o777)
    fresh.parent.chmod(0o777)
    build.build()
    assert fresh.stat().st_mode & 0o077 == fresh.parent.stat().st_mode & 0o077 == 0


def test_a_folder_of_another_user_is_not_used(fresh: Path, caplog: pytest.LogCaptureFixture) -> None:
    fresh.mkdir(parents=True)
    give_away(fresh)
    assert not build_kernels()
    assert "belongs to another user; set XDG_CACHE_HOME" in caplog.text
    assert list(fresh.iterdir()) == []


def test_without_a_home_folder_there_is_a_notice(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert not build_kernels()
    assert "set XDG_CACHE_HOME" in caplog.text


def test_a_compiler_that_hangs_is_ended_with_its_children(
    fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\nsleep 60 &\nwait\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(build, "SECONDS", 0.5)
    start = time.monotonic()
    assert not build_kernels()
    assert time.monotonic() - start < 20
    assert "timed out after 0.5 seconds" in caplog.text


def test_one_source_that_fails_ends_the_compilers_of_the_others(
    fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\ncase "$*" in *second.cpp*) sleep 0.5; echo broken >&2; exit 1;; esac\nsleep 60\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    start = time.monotonic()
    with pytest.raises(subprocess.CalledProcessError) as failure:
        build.build()
    assert time.monotonic() - start < 20
    assert failure.value.stderr == "broken\n"


def test_the_compiler_may_be_a_command_of_several_words(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "env LANG=C g++")
    assert build_kernels()
    monkeypatch.setenv("CXX", "g++ '")
    with pytest.raises(OSError, match="is not a command: No closing quotation"):
        build.build()


def test_what_a_killed_build_has_left_is_removed_and_a_running_one_left_alone(fresh: Path) -> None:
    old, running = fresh / "unfinished-old", fresh / "unfinished-running"
    for folder in (old, running):
        folder.mkdir(parents=True)
    os.utime(old, (0, 0))
    build.build()
    assert not old.exists()
    assert running.exists()


def test_kernels_can_be_switched_off(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("COATTEND_KERNELS", "off")
    with caplog.at_level(logging.INFO):
        assert not build_kernels()
    assert caplog.text == ""
    assert not fresh.exists()


def test_what_is_built_is_loaded_without_a_compiler(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    build.build()
    caplog.clear()
    monkeypatch.setattr(build, "_run", None)  # any command would fail
    for get in (cpu.library, build_kernels):
        monkeypatch.setattr(cpu, "STATE", cpu.State())
        assert get()
    assert caplog.text == ""


def test_a_forward_pass_starts_no_compiler(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(build, "_run", None)
    x, weights = torch.randn(1, 2, 4, 4, 4), torch.randn(2, 4)
    for _ in range(2):
        assert co_attention(x, weights, ca.cyclic(4)).shape == x.shape
        assert ca.functional.max_pool_2x2(x).shape == (1, 2, 4, 2, 2)
    assert not fresh.exists()
    assert len(caplog.records) == 1
    assert "call coattend.functional.build_kernels() once" in caplog.text


@pytest.mark.parametrize("layer", [lambda: ca.nn.GroupConv2d(1, 1, 1, "p4"), lambda: ca.nn.CoAttention(1, "p4")])
def test_the_first_layer_builds_the_kernels_and_says_so(
    layer: Callable[[], torch.nn.Module], fresh: Path, caplog: pytest.LogCaptureFixture
) -> None:
    layer()
    assert cpu.STATE.library is not None
    assert "building the C++ kernels, once" in caplog.text
    caplog.clear()
    layer()
    assert caplog.text == ""


@pytest.mark.slow
@pytest.mark.parametrize("instructions", [(), *build.INSTRUCTION_SETS.values(), (*build.AVX512, "-mavx512bf16")])
@pytest.mark.parametrize("compiler", ["g++-10", "g++-11", "clang++"])
def test_compilers_of_other_versions_take_the_sources(compiler: str, instructions: tuple[str, ...]) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    flags = (*build.FLAGS, *instructions, "-O0", "-S", "-o", os.devnull)
    for source in build.SOURCES:
        result = subprocess.run([compiler, *flags, str(source)], capture_output=True, text=True)
        assert result.returncode == 0, f"{source.name}: {result.stderr[:1000]}"
