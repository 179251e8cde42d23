"""e2cnn 0.2.3 as an independent oracle, made to run on numpy 2, where ndarray.tostring and array(copy=False) are gone.

Importing this module patches e2cnn for the process.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import numpy as np


class _NumpyOne:
    """numpy, with the meaning that ``copy=False`` had in numpy 1."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def array(value: Any, copy: bool = True, **options: Any) -> np.ndarray:
        return np.array(value, **options) if copy else np.asarray(value, **options)


def _hash(self: Any) -> int:
    return hash((self.in_irrep, self.out_irrep, self.mu.tobytes(), np.asarray(self.gamma).tobytes()))


def _patched_modules() -> tuple[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an old package
        gspaces, enn, bases, utils = map(_module, ("gspaces", "nn", "kernels.irreps_basis", "kernels.utils"))
    utils.np = _NumpyOne()
    for basis in vars(bases).values():
        own_hash = getattr(vars(basis).get("__hash__"), "__code__", None) if isinstance(basis, type) else None
        if own_hash is not None and "tostring" in own_hash.co_names:
            basis.__hash__ = _hash
    return gspaces, enn


def _module(name: str) -> Any:
    return importlib.import_module(f"e2cnn.{name}")


gspaces, enn = _patched_modules()


def regular_conv(
    space: Any, in_channels: int, out_channels: int, kernel_size: int, lifting: bool, **options: Any
) -> Any:
    """An e2cnn convolution onto regular fields, from scalar fields (lifting) or from regular ones."""
    representation = space.trivial_repr if lifting else space.regular_repr
    types = [
        enn.FieldType(space, n * [r]) for n, r in ((in_channels, representation), (out_channels, space.regular_repr))
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return enn.R2Conv(*types, kernel_size=kernel_size, bias=True, **options).eval()
