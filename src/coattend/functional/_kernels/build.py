"""The build of the C++ kernels: once, into the user's cache folder, where nobody else can change them."""

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
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

import torch

from coattend._files import cache_dir

SOURCES = tuple(sorted(Path(__file__).parent.glob("*.cpp")))  # all of them in one library
HEADERS = tuple(sorted(Path(__file__).parent.glob("*.h")))
FLAGS = ("-O3", "-std=c++17", "-fPIC", "-fopenmp", "-fno-math-errno", "-Wno-psabi")
AVX2 = ("-mavx2", "-mfma")
# More registers and masks. The vectors of the compiler's own stay at 32 bytes; files that gain from 64 ask for them.
AVX512 = (*AVX2, *(f"-mavx512{part}" for part in ("f", "vl", "dq", "bw")), "-mprefer-vector-width=256")
INSTRUCTION_SETS = {"AVX2": AVX2, "AVX512": AVX512}
SECONDS = 300  # of a compiler that hangs; the largest source takes 20, and some times as many on a busy machine
UNFINISHED = "unfinished-"

logger = logging.getLogger("coattend")


def cached() -> Path | None:
    """Return the library built for these sources and this processor, or None; starts no compiler."""
    folder = cache_folder()
    if not folder.is_dir():
        return None
    return next((path for path in sorted(_private(folder).glob(f"{_prefix()}*.so")) if _is_whole(path)), None)


def build() -> Path:
    """Compile the kernels into the cache and remove other builds of the same sources."""
    if os.name != "posix":
        raise OSError("it is built on Linux and macOS only")
    folder = _private(cache_folder())
    path = _compiled(folder)
    for other in folder.glob(f"{_prefix()}*.so"):
        if other != path:
            other.unlink(missing_ok=True)
    return path


def cache_folder() -> Path:
    """Return the folder of compiled kernels."""
    return cache_dir() / "kernels"


def _prefix() -> str:
    texts = (source.read_text() for source in (*SOURCES, *HEADERS))
    key = "\0".join((*texts, *_flags(), platform.machine()))
    return f"kernels-{hashlib.sha256(key.encode()).hexdigest()[:16]}-"


def _flags() -> tuple[str, ...]:
    instructions = INSTRUCTION_SETS.get(torch.backends.cpu.get_cpu_capability(), ())
    rounds = instructions is AVX512 and getattr(torch.cpu, "_is_avx512_bf16_supported", bool)()
    return (*FLAGS, *instructions, *(("-mavx512bf16",) if rounds else ()))


def _compiled(folder: Path) -> Path:
    _remove_abandoned(folder)
    prefix = _prefix()  # before the compiler reads the sources: they may change meanwhile
    # A warning, so that it is seen: the program stands still meanwhile.
    logger.warning("coattend: building the C++ kernels, once, into %s; this takes up to a minute.", folder)
    # In a folder of its own and then renamed: another process sees all of the file or nothing.
    with tempfile.TemporaryDirectory(dir=folder, prefix=UNFINISHED) as scratch:
        library = Path(scratch, "kernels.so")
        objects = {source: Path(scratch, f"{source.stem}.o") for source in SOURCES}
        largest_first = sorted(SOURCES, key=lambda source: source.stat().st_size, reverse=True)
        _run([*_compiler(), *_flags(), "-c", str(source), "-o", str(objects[source])] for source in largest_first)
        # Linked without OpenMP's library: its symbols are found in the runtime that torch has loaded.
        _run([[*_compiler(), "-shared", *map(str, objects.values()), "-o", str(library)]])
        library.chmod(0o700)
        with library.open("rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
            os.fsync(file.fileno())  # after a power failure a name must not stand for a part of the file
        path = folder / f"{prefix}{digest}.so"
        os.replace(library, path)
    return path


def _is_whole(path: Path) -> bool:
    """Return whether the file belongs to the user, nobody else can write to it, and its name states its digest."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        return False
    return path.stem.endswith(hashlib.sha256(path.read_bytes()).hexdigest())


def _private(folder: Path) -> Path:
    """Create the folder if needed and close it: only the user may put a library there."""
    for level in (folder.parent, folder):
        level.mkdir(mode=0o700, parents=True, exist_ok=True)
        if level.stat().st_uid != os.geteuid():
            raise OSError(f"{level} belongs to another user; set XDG_CACHE_HOME to a folder of your own")
        if level.stat().st_mode & 0o022:
            level.chmod(0o700)
    return folder


def _remove_abandoned(folder: Path) -> None:
    """Remove the folders of builds that were killed."""
    for scratch in folder.glob(f"{UNFINISHED}*"):
        if time.time() - scratch.stat().st_mtime > 2 * SECONDS:
            shutil.rmtree(scratch, ignore_errors=True)


def _compiler() -> list[str]:
    try:
        chosen = shlex.split(os.environ.get("CXX", ""))
    except ValueError as reason:
        raise OSError(f"CXX={os.environ['CXX']!r} is not a command: {reason}") from reason
    usual = shutil.which("g++") or shutil.which("c++")
    if not chosen and usual is None:
        raise FileNotFoundError("no C++ compiler on the path; install a C++ compiler (g++)")
    return chosen or [str(usual)]


def _run(commands: Iterable[list[str]]) -> None:
    """Run commands, as many at once as there are processors; end all of them if one fails or takes too long."""
    started: list[subprocess.Popen[str]] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            for done in as_completed([pool.submit(_run_one, command, started) for command in commands]):
                done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in started:
                _end(process)
            raise


def _run_one(command: list[str], started: list[subprocess.Popen[str]]) -> None:
    """Run a command and note its process; end it and its children if it takes too long."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        started.append(process)
        try:
            output, error = process.communicate(timeout=SECONDS)
        except BaseException:
            _end(process)
            raise
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command, output, error)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
