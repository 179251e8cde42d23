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
