"""The state of an unfinished run as one file that knows whether it is whole."""

from __future__ import annotations

import hashlib
import io
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coattend.models.records import COUNT, NUMBER, TABLE, RunError, checked, or_null
from coattend.train.history import Best

MARK = b"coattend checkpoint, sha256 "  # absent in files of versions without a digest
ZIP = b"PK\x03\x04"
STATE = {"model": TABLE, "optimizer": TABLE, "epoch": COUNT, "metrics_bytes": COUNT}
# what torch.load, and putting its result to use, raise on damaged files
DAMAGE = (RuntimeError, ValueError, TypeError, KeyError, AttributeError, IndexError, EOFError, OSError, MemoryError,
           pickle.UnpicklingError, zipfile.BadZipFile, AssertionError)  # fmt: skip
BEST = {"epoch": COUNT, "accuracy": NUMBER, "loss": NUMBER}


@dataclass(frozen=True)
class Checkpoint:
    """The state after an epoch.

    - model, optimizer: state dictionaries
    - relative: the relative poses of restricted layers
    - metrics_bytes: the length of metrics.jsonl at this moment
    - average: the state of averaged weights, if the recipe averages
    """

    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Any]
    epoch: int
    best: Best | None
    relative: Mapping[str, tuple[int, ...]]
    metrics_bytes: int
    average: Mapping[str, Tensor] | None = None

    def to_bytes(self) -> bytes:
        """Return the file."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        best = None if self.best is None else {key: getattr(self.best, key) for key in BEST}
        return checkpoint_bytes({**plain, "best": best})

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        """Read a file that :meth:`to_bytes` made, or one of versions without a digest."""
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
            checked(path, state, {"relative": TABLE, "average": or_null(TABLE)}, optional=True)
            best = None if state["best"] is None else Best(**checked(path, state["best"], BEST))
            return cls(**{"relative": {}, **state, "best": best})
        except DAMAGE as error:
            raise damaged_checkpoint(path) from error


def checkpoint_bytes(state: Mapping[str, Any]) -> bytes:
    """Return a line with the digest of the rest, then what torch.save writes."""
    content = io.BytesIO()
    torch.save(dict(state), content)
    body = content.getvalue()
    return MARK + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def damaged_checkpoint(path: Path) -> RunError:
    """Return the error for a checkpoint that cannot be used."""
    return RunError(f"{path} is damaged; move it away to start from the first epoch.")


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
