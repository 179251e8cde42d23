"""e2cnn 0.2.3 as an independent oracle; the benchmarks make it run on numpy 2."""

from __future__ import annotations

import warnings
from typing import Any

from coattend.bench.e2cnn_networks import e2cnn_modules

gspaces, enn = e2cnn_modules()


def regular_conv(space: Any, in_channels: int, out_channels: int, kernel_size: int, lifting: bool) -> Any:
    """An e2cnn convolution onto regular fields, from scalar fields (lifting) or from regular ones."""
    representation = space.trivial_repr if lifting else space.regular_repr
    types = [
        enn.FieldType(space, n * [r]) for n, r in ((in_channels, representation), (out_channels, space.regular_repr))
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return enn.R2Conv(*types, kernel_size=kernel_size, bias=True).eval()
