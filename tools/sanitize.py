"""Test the C++ kernels with the address and undefined behaviour sanitizers of g++.

    python -m tools.sanitize

Compiles the kernels with the sanitizers into a folder of its own and runs ``tests/functional/_kernels/test_memory.py``
with them. The first access outside of a tensor or a buffer, or the first undefined operation, ends the run with a
message that names the line. Exits with 1 if a test fails or a sanitizer complains, with 2 if g++ has none.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).parents[1]
TESTS = "tests/functional/_kernels/test_memory.py"
# After the flags of the build, whose -O3 takes minutes with sanitizers; -g1: lines, without variables.
FLAGS = "-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined"
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",  # Python itself does not free all of its memory
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def runtimes() -> list[Path] | None:
    """Return the libraries of the sanitizers, or None if g++ or one of them is missing."""
    if shutil.which("g++") is None:
        return None
    names = ("libasan.so", "libubsan.so")
    asked = [["g++", f"-print-file-name={name}"] for name in names]
    paths = [Path(subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()) for words in asked]
    return paths if all(path.is_absolute() and path.is_file() for path in paths) else None


def environment(libraries: list[Path], cache: str) -> dict[str, str]:
    """Return the environment of a process whose kernels are compiled with sanitizers, into this cache folder."""
    compiler = shlex.join(["sh", "-c", f'exec g++ "$@" {FLAGS}', "g++"])
    source = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    # The sanitizers must be loaded before everything else, and their memory allocator must be that of torch.
    loaded = {"CXX": compiler, "XDG_CACHE_HOME": cache, "LD_PRELOAD": " ".join(map(str, libraries))}
    return {**os.environ, "PYTHONPATH": source, **loaded, **OPTIONS}


def main() -> int:
    """Run the tests of the kernels' memory with sanitizers."""
    libraries = runtimes()
    if libraries is None:
        Console(stderr=True).print("expected g++ with libasan and libubsan, found no such compiler; install g++.")
        return 2
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-s", *sys.argv[1:], TESTS]
        return int(subprocess.run(command, cwd=ROOT, env=environment(libraries, cache), check=False).returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
