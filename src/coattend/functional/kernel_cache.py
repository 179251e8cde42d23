"""The built kernels in the user's cache folder: compiled once, and loaded only if nobody else can have changed them."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from pathlib import Path

import torch

from coattend._files import cache_dir

SOURCE = Path(__file__).with_name("kernels.cpp")
FLAGS = ("-O3", "-std=c++17", "-fPIC", "-fopenmp", "-fno-math-errno", "-Wno-psabi")
INSTRUCTION_SETS = {"AVX2": ("-mavx2", "-mfma"), "AVX512": ("-mavx2", "-mfma")}  # wider registers are untried
SECONDS = 300  # of a compiler that hangs; it takes 4, and some times as many on a busy machine
UNFINISHED = "unfinished-"

logger = logging.getLogger("coattend")


def kernels(rebuild: bool = False) -> Path:
    """The library for this source, compiler and processor: from the cache if it is whole, else compiled."""
    if os.name != "posix":
        raise OSError("it is built on Linux and macOS only")
    folder = _private(cache_folder())
    command = [*_compiler(), *FLAGS, *INSTRUCTION_SETS.get(torch.backends.cpu.get_cpu_capability(), ())]
    version = _output([*_compiler(), "--version"])
    key = "\0".join((SOURCE.read_text(), *command, version, platform.machine()))
    prefix = f"kernels-{hashlib.sha256(key.encode()).hexdigest()[:16]}-"
    for path in sorted(folder.glob(f"{prefix}*.so")):
        if not rebuild and _is_whole(path):
            return path
        path.unlink(missing_ok=True)
    return _built(folder, prefix, command)


def cache_folder() -> Path:
    """Return the folder of compiled kernels."""
    return cache_dir() / "kernels"


def _built(folder: Path, prefix: str, command: list[str]) -> Path:
    _sweep(folder)
    logger.info("coattend: building the fused co-attention kernel, once, into %s", folder)
    # In a folder of its own and then renamed: another process sees all of the file or nothing.
    with tempfile.TemporaryDirectory(dir=folder, prefix=UNFINISHED) as scratch:
        objects, built = Path(scratch, "kernels.o"), Path(scratch, "kernels.so")
        _output([*command, "-c", str(SOURCE), "-o", str(objects)])
        # Linked without OpenMP's library: its symbols are found in the runtime that torch has loaded.
        _output([*_compiler(), "-shared", str(objects), "-o", str(built)])
        built.chmod(0o700)
        with built.open("rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
            os.fsync(file.fileno())  # after a power failure a name must not stand for a part of the file
        path = folder / f"{prefix}{digest}.so"
        os.replace(built, path)
    return path


def _is_whole(path: Path) -> bool:
    """Whether the file is the user's, nobody else can write to it, and it has the digest that its name says."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        return False
    return path.stem.endswith(hashlib.sha256(path.read_bytes()).hexdigest())


def _private(folder: Path) -> Path:
    """The folder, made if need be, in which nobody but the user may put a library."""
    for place in (folder.parent, folder):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if place.stat().st_uid != os.geteuid():
            raise OSError(f"{place} belongs to another user; set XDG_CACHE_HOME to a folder of your own")
        if place.stat().st_mode & 0o022:
            place.chmod(0o700)
    return folder


def _sweep(folder: Path) -> None:
    """Remove what builds that were killed have left."""
    for left in folder.glob(f"{UNFINISHED}*"):
        if time.time() - left.stat().st_mtime > 2 * SECONDS:
            shutil.rmtree(left, ignore_errors=True)


def _compiler() -> list[str]:
    try:
        chosen = shlex.split(os.environ.get("CXX", ""))
    except ValueError as reason:
        raise OSError(f"CXX={os.environ['CXX']!r} is not a command: {reason}") from reason
    found = shutil.which("g++") or shutil.which("c++")
    if not chosen and found is None:
        raise FileNotFoundError("no C++ compiler on the path; install a C++ compiler (g++)")
    return chosen or [str(found)]


def _output(command: list[str]) -> str:
    """What a command prints; with its children it is ended when it takes too long."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, error = process.communicate(timeout=SECONDS)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command, output, error)
    return output
