"""Files: written in one piece, refused before the work begins, and the cache folder."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_UNFINISHED = re.compile(r"\.(?P<name>.+)\.(?:\w{8}|\w{8}\.tmp|[0-9a-f]{16}\.tmp)")  # the last two of earlier versions


@contextmanager
def atomic_writer(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that appears under its name only when it is complete.

    A reader, or a crash, sees the old content or the new, never a part of it.
    """
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent} to write {path.name} into; make it first.")
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file in one piece."""
    with atomic_writer(path) as file:
        file.write(content)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file in one piece, with an error that names the path."""
    if os.path.isdir(path):
        raise ValueError(f"{path} is a folder; expected the name of the file to write.")
    try:
        write_atomically(path, content)
    except OSError as error:
        raise unwritable(path, error) from error


def remove_unfinished(folder: Path, names: Collection[str]) -> None:
    """Remove what a killed process left while it wrote files of these names into a folder."""
    for path in folder.glob(".*"):
        match = _UNFINISHED.fullmatch(path.name)
        if match and match["name"] in names and path.is_file() and not path.is_symlink():
            path.unlink(missing_ok=True)


def checked_path(path: str | Path) -> Path:
    """Return the path, or raise if the argument is not one."""
    if not isinstance(path, (str, os.PathLike)) or "\0" in str(path):
        raise ValueError(f"expected the path of a file, got {path!r}.")
    return Path(path)


def check_target(path: Path, overwrite: bool) -> None:
    """Require a path that can be written to and, unless ``overwrite``, does not exist."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; expected the name of the file to write.")
    if path.exists() and not overwrite:
        raise ValueError(f"{path} exists already; choose another name, or say overwrite (--overwrite).")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent} to write {path.name} into; make it first.")
    _check_writable(path.parent, path)


def make_folder(path: Path) -> None:
    """Make a folder unless it exists, and require that it can be written to."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file; expected the name of a folder to write into.")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error
    _check_writable(path, path)


def unwritable(path: Path, error: OSError) -> ValueError:
    """Return the error for a file that cannot be written."""
    return ValueError(f"cannot write {path}: {error.strerror}; choose another place.")


def cache_dir() -> Path:
    """Return the folder in which fetched data and compiled kernels are cached; OSError without a home folder."""
    try:
        if sys.platform == "win32":
            base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        elif sys.platform == "darwin":
            base = Path.home() / "Library" / "Caches"
        else:
            base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError as error:
        raise OSError("there is no home folder for the cache; set XDG_CACHE_HOME") from error
    return base / "coattend"


def _check_writable(folder: Path, target: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise unwritable(target, error) from error
