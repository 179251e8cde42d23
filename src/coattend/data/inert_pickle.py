"""CIFAR-10's pickled batches, read without calling anything that the file names."""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coattend.data.dataset import DataError


class _Inert:
    """Stands for a numpy object: keeps what it is built from and does nothing."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


_NUMPY_OBJECTS = {
    (module, name)
    for core in ("numpy.core.multiarray", "numpy._core.multiarray")
    for module, name in ((core, "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype"))
}


OPERATIONS = 300_000  # a batch of 10,000 images with labels and file names has some 60,000
SHARED = 32  # references to earlier objects, which nested in one another would multiply


def _check_operations(content: bytes) -> None:
    """Refuse what makes an unpickler take memory or time out of proportion to the file."""
    shared = 0
    for count, (operation, argument, _) in enumerate(pickletools.genops(content)):
        if count > OPERATIONS:
            raise ValueError(f"it has more than {OPERATIONS:,} operations")
        if argument is not None and operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and argument > count:
            raise ValueError(f"it numbers its object {count} as {argument}")
        shared += operation.name in ("DUP", "GET", "BINGET", "LONG_BINGET")
        if shared > SHARED:
            raise ValueError(f"it refers to its own objects more than {SHARED} times")


class _InertUnpickler(pickle.Unpickler):
    """Answers the three names that a pickled array needs with stand-ins and refuses every other name."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NUMPY_OBJECTS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _Inert


def read_batch(content: bytes, file: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (n, 3072) and labels (n,) of one pickled batch."""
    try:
        _check_operations(content)
        batch = _InertUnpickler(io.BytesIO(content), encoding="latin1").load()
        fields = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        return _bytes_of(fields["data"]), np.array(fields["labels"], dtype=np.uint8)
    except Exception as error:  # a hostile file can make the unpickler raise anything
        raise DataError(
            f"{file} is refused: expected a pickled CIFAR-10 batch, a dict of 'data' and 'labels' that needs nothing "
            f"but numpy arrays, got something else ({type(error).__name__}: {error}); nothing in it was run."
        ) from error


def _bytes_of(array: Any) -> NDArray[np.uint8]:
    if not isinstance(array, _Inert):
        raise ValueError(f"data is a {type(array).__name__}, not an array")
    _, shape, dtype, fortran, raw = array.state
    if dtype.arguments[0] not in ("u1", "|u1", "uint8") or fortran:
        raise ValueError(f"data has dtype {dtype.arguments[0]!r}, expected u1 in C order")
    content = raw.encode("latin1") if isinstance(raw, str) else raw
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)
