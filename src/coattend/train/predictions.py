"""The file predictions.npz of a run."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from coattend.data.store import open_npz
from coattend.models.records import damaged


def read_predictions(path: Path) -> dict[str, np.ndarray]:
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
    return arrays
