"""The file predictions.npz of a run."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coattend._files import write_atomically
from coattend.data.store import open_npz
from coattend.models.records import damaged


def write_predictions(path: Path, arrays: Mapping[str, NDArray[np.int64]]) -> None:
    """Write labels and predicted classes of the test images, by protocol, for comparisons image by image."""
    content = io.BytesIO()
    small: dict[str, Any] = {name: array.astype(np.uint16) for name, array in arrays.items()}
    np.savez_compressed(content, **small)
    write_atomically(path, content.getvalue())


def read_predictions(path: Path) -> dict[str, NDArray[np.int64]]:
    """Read labels and predicted classes of the test images, by protocol (last, and perhaps valid)."""
    try:
        with open_npz(path) as file:
            arrays = {name: np.asarray(file[name]) for name in file.files}
    except (OSError, ValueError, EOFError, KeyError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise damaged(path, str(error) or type(error).__name__) from error
    missing = {"labels", "last"} - set(arrays)
    if missing:
        raise damaged(path, f"it has no {', '.join(sorted(missing))}")
    shape = arrays["labels"].shape
    for name, array in arrays.items():
        if array.ndim != 1 or array.shape != shape or array.dtype.kind not in "iu":
            raise damaged(path, f"{name} is {array.dtype} {array.shape}, expected whole numbers of the labels' shape")
    return {name: array.astype(np.int64) for name, array in arrays.items()}
