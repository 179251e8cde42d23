"""Where an export goes: refused before the work begins if it cannot be written."""

from __future__ import annotations

import tempfile
from pathlib import Path

from coattend.models.files import unwritable


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
        raise unwritable(path, error) from error


def make_folder(path: Path) -> None:
    """Make a folder, unless it is there, and require that it can be written to."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file; expected the name of a folder to write into.")
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise unwritable(path, error) from error
