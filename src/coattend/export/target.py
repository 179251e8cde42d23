"""Where an export goes: refused before the work begins if it cannot be written, and written whole or not at all."""

from __future__ import annotations

import tempfile
from pathlib import Path

from coattend.models.files import write_atomically


def check_target(path: Path, overwrite: bool) -> None:
    """Require a place that can be written to and holds nothing yet."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; expected the name of the file to write.")
    if path.exists() and not overwrite:
        raise ValueError(f"{path} exists already; choose another name, or say overwrite (--overwrite).")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent} to write {path.name} into; make it first.")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise _unwritable(path, error) from error


def write_whole(path: Path, content: bytes) -> None:
    """Write in one piece; a failure leaves what was there before."""
    try:
        write_atomically(path, content)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> ValueError:
    return ValueError(f"cannot write {path}: {error.strerror}; choose another place.")
