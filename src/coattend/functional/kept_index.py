"""Indices that follow from the tables of a layer, kept as long as these: selecting takes less time than making them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from coattend.functional.dispatch import is_eager

LARGEST = 1 << 16  # numbers of an index that is kept; with larger ones the convolution takes far longer


@dataclass(frozen=True)
class _Entry:
    index: Tensor
    other: Tensor
    versions: tuple[int, int]

    def follows_from(self, first: Tensor, other: Tensor) -> bool:
        return self.other is other and self.versions == (first._version, other._version)


_INDICES: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # by the first table


def kept_index(first: Tensor, other: Tensor, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
    """Return the index that ``make`` makes of two tables, and of a key that says how, flattened.

    It is made again if one of the tables has changed, and in graphs that are traced.
    """
    if not is_eager(first) or any(type(table) is not Tensor or table.is_inference() for table in (first, other)):
        return make().flatten()
    indices = _INDICES.setdefault(first, {})
    entry = indices.get(key)
    if entry is None or not entry.follows_from(first, other):
        with torch.inference_mode(False):  # a tensor of inference mode could not be saved for a backward pass
            index = make().flatten()
        if type(index) is not Tensor or index.numel() > LARGEST:
            return index
        indices[key] = entry = _Entry(index, other, (first._version, other._version))
    return entry.index
