"""p4-CNN in e2cnn 0.2.3, for comparison only; the package is no dependency."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import numpy as np
from torch import Tensor, nn

from coattend.bench.networks import WIDTH


class P4CNN(nn.Module):
    """Regular fields of C4, the layers of p4-CNN, onto ten scalar fields."""

    def __init__(self) -> None:
        super().__init__()
        gspaces, enn = e2cnn_modules()
        space = gspaces.Rot2dOnR2(4)
        image = enn.FieldType(space, [space.trivial_repr])
        regular = enn.FieldType(space, WIDTH // 4 * [space.regular_repr])
        layers: list[Any] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for number in range(1, 7):
                layers += [
                    enn.R2Conv(image if number == 1 else regular, regular, kernel_size=3),
                    enn.InnerBatchNorm(regular),
                    enn.ReLU(regular),
                ]
                if number == 2:
                    layers.append(enn.PointwiseMaxPool(regular, 2))
            layers.append(enn.R2Conv(regular, enn.FieldType(space, 10 * [space.trivial_repr]), kernel_size=4))
            self.layers = enn.SequentialModule(*layers)
        self.wrapped = enn.GeometricTensor
        self.image = image

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.layers(self.wrapped(x, self.image)).tensor.flatten(1)


class _NumpyOne:
    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def array(value: Any, copy: bool = True, **options: Any) -> np.ndarray:
        return np.array(value, **options) if copy else np.asarray(value, **options)


def _hash(self: Any) -> int:
    return hash((self.in_irrep, self.out_irrep, self.mu.tobytes(), np.asarray(self.gamma).tobytes()))


def e2cnn_modules() -> tuple[Any, Any]:
    """e2cnn, made to run on numpy 2, where ndarray.tostring and array(copy=False) are gone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an old package, imported for comparison only
        gspaces, enn, bases, utils = map(_module, ("gspaces", "nn", "kernels.irreps_basis", "kernels.utils"))
    utils.np = _NumpyOne()
    for basis in vars(bases).values():
        own_hash = getattr(vars(basis).get("__hash__"), "__code__", None) if isinstance(basis, type) else None
        if own_hash is not None and "tostring" in own_hash.co_names:
            basis.__hash__ = _hash
    return gspaces, enn


def _module(name: str) -> Any:
    return importlib.import_module(f"e2cnn.{name}")
