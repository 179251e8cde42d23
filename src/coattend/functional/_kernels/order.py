"""``torch.ops.coattend.reorder``: the planes of an image in another order, in its memory format."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coattend.functional._kernels import rows
from coattend.functional._kernels.library import LIBRARY, define
from coattend.functional.layout import empty_like, in_format_of


def reorder(x: Tensor, index: list[int]) -> Tensor:
    """Return planes ``index`` of an image (batch, planes, height, width); a permutation."""
    if sorted(index) != list(range(x.shape[1])):
        raise ValueError(f"reorder expects a permutation of {x.shape[1]} planes, got {index}.")
    if rows.supports(x):
        return rows.reorder(x, index)
    return in_format_of(x[:, index], x)


def _inverse(index: list[int]) -> list[int]:
    return sorted(range(len(index)), key=index.__getitem__)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return torch.ops.coattend.reorder(grad, _inverse(ctx.index)), None


def _save(ctx: Any, inputs: tuple[Tensor, list[int]], output: Tensor) -> None:
    ctx.index = inputs[1]


define("reorder(Tensor x, int[] index) -> Tensor", reorder, lambda x, index: empty_like(x))
torch.library.register_autograd("coattend::reorder", _backward, setup_context=_save, lib=LIBRARY)
