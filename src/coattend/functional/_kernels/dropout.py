"""``torch.ops.coattend.drop``: dropout of a channels-last map by given draws, which saves one byte per element."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coattend.functional._kernels import rows
from coattend.functional._kernels.library import LIBRARY, define, differentiate_first_output
from coattend.functional.layout import channels_last, empty_like


def drop(x: Tensor, draws: Tensor, least: int, factor: float) -> tuple[Tensor, Tensor]:
    """Return x where a draw is at least ``least``, times the factor, and which elements those are.

    Draws are int16, one per element, in the order of torch's default format: a seed drops the same in either format.
    """
    if draws.dtype != torch.int16 or draws.numel() != x.numel() or draws.device != x.device:
        raise ValueError(
            f"drop expects an int16 draw for each of {x.numel()} elements of x, on its device, got {draws.numel()} of "
            f"{draws.dtype} on {draws.device}; pass as many draws as x has elements."
        )
    if rows.supports(x):
        mask = empty_like(x.to(torch.uint8))
        return rows.drop(x, draws.contiguous(), mask, least, factor), mask
    mask = channels_last((draws.view(x.shape) >= least).to(torch.uint8))
    return x * (mask * factor).to(x.dtype), mask


def drop_backward(grad: Tensor, mask: Tensor, factor: float) -> Tensor:
    """Return the gradient of :func:`drop` with respect to x."""
    if mask.dtype != torch.uint8 or mask.shape != grad.shape or mask.device != grad.device:
        raise ValueError(
            f"drop_backward expects the uint8 mask {tuple(grad.shape)} that drop returned, got {mask.dtype} "
            f"{tuple(mask.shape)}."
        )
    grad = channels_last(grad)
    if rows.supports(grad):
        return rows.drop(grad, None, channels_last(mask), 0, factor)
    return grad * (mask * factor).to(grad.dtype)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, int, float], output: tuple[Tensor, Tensor]) -> None:
    ctx.factor = inputs[3]
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


@differentiate_first_output
def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
    (mask,) = ctx.saved_tensors
    return torch.ops.coattend.drop_backward(grad, mask, ctx.factor), None, None, None


def _backward_again(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return torch.ops.coattend.drop_backward(grad, *ctx.saved), None, None


def _save_kept(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
    ctx.saved = inputs[1:]


define(
    "drop(Tensor x, Tensor draws, int least, float factor) -> (Tensor, Tensor)",
    drop,
    lambda x, draws, least, factor: (empty_like(x), empty_like(x.to(torch.uint8))),
)
define(
    "drop_backward(Tensor grad, Tensor mask, float factor) -> Tensor",
    drop_backward,
    lambda grad, mask, factor: channels_last(torch.empty_like(grad)),
)
torch.library.register_autograd("coattend::drop", _backward, setup_context=_save, lib=LIBRARY)
torch.library.register_autograd("coattend::drop_backward", _backward_again, setup_context=_save_kept, lib=LIBRARY)
