"""The state of an unfinished run as one file that knows whether it is whole."""

from __future__ import annotations

import hashlib
import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coattend.models.records import COUNT, NUMBER, TABLE, RunError, checked

MARK = b"coattend checkpoint, sha256 "  # files without it are of versions that kept no digest
ZIP = b"PK\x03\x04"
STATE = {"model": TABLE, "optimizer": TABLE, "epoch": COUNT, "metrics_bytes": COUNT}
# what torch.load, and putting its result to use, raise on damaged files
DAMAGE = (RuntimeError, ValueError, TypeError, KeyError, AttributeError, IndexError, EOFError, OSError, MemoryError,
           pickle.UnpicklingError, zipfile.BadZipFile, AssertionError)  # fmt: skip
BEST = {"epoch": COUNT, "accuracy": NUMBER, "loss": NUMBER}


def checkpoint_content(state: dict[str, Any]) -> bytes:
    """Return the file: a line with the digest of the rest, then what torch.save writes."""
    content = io.BytesIO()
    torch.save(state, content)
    body = content.getvalue()
    return MARK + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read what :func:`checkpoint_content` made, or a file of versions that kept no digest."""
    content = path.read_bytes()
    if content.startswith(MARK):
        line, _, content = content.partition(b"\n")
        if line != MARK + hashlib.sha256(content).hexdigest().encode():
            raise damaged_checkpoint(path)
    if not content.startswith(ZIP):
        raise damaged_checkpoint(path)
    try:
        state = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
        checked(path, state, STATE)
        checked(path, state["model"], dict.fromkeys(state["model"], ("a tensor", _is_tensor)))
        checked(path, state, {"relative": TABLE}, optional=True)
        if state["best"] is not None:
            checked(path, state["best"], BEST)
    except DAMAGE as error:
        raise damaged_checkpoint(path) from error
    return dict(state)


def damaged_checkpoint(path: Path) -> RunError:
    """Make the error for a checkpoint that cannot be used."""
    return RunError(f"{path} is damaged; move it away to start from the first epoch.")


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
