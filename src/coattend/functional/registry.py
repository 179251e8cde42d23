"""What the operators of ``torch.ops.coattend`` share: how they are registered, and when they are not used."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

LIBRARY = torch.library.Library("coattend", "DEF")

# torch 2.6 cannot tell an export from a compilation; there both decompose.
is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)


def decomposes(x: Tensor) -> bool:
    """Whether standard operations serve better than the operators here.

    A graph that is exported or traced has to run where this library is not installed; Inductor fuses them for GPUs; the
    transforms of torch.func (vmap, jvp) and forward-mode derivatives know no rule for the operators.
    """
    if is_exporting():
        return True
    if torch.compiler.is_compiling():
        return x.device.type != "cpu"
    return torch._C._are_functorch_transforms_active() or in_dual_level() or torch._C._is_tracing()


def in_dual_level() -> bool:
    """Whether tensors may carry tangents of forward-mode differentiation."""
    return forward_ad._current_level >= 0


def define(schema: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Register an operator with one kernel for all devices, and one that only knows shapes."""
    name = schema.partition("(")[0]

    @functools.wraps(kernel)
    def without_tangents(*arguments: Any) -> Any:
        if in_dual_level() and any(isinstance(a, Tensor) and _has_tangent(a) for a in arguments):
            raise ValueError(
                f"torch.ops.coattend.{name} expects tensors without tangents, got one of forward-mode differentiation; "
                "call the function of coattend.functional or the layer instead, whose derivative is right."
            )
        return kernel(*arguments)

    LIBRARY.define(schema, tags=torch.Tag.pt2_compliant_tag)
    LIBRARY.impl(name, without_tangents, "CompositeExplicitAutograd")
    torch.library.register_fake(f"coattend::{name}", fake, lib=LIBRARY)


def _has_tangent(tensor: Tensor) -> bool:
    return forward_ad.unpack_dual(tensor).tangent is not None


def differentiates_again() -> bool:
    """Whether a gradient that is being computed is to be differentiated in its turn, backward or forward."""
    return torch.is_grad_enabled() or in_dual_level()


def save_first_two(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Keep the two tensors for the backward, and the other arguments beside them."""
    ctx.save_for_backward(*inputs[:2])
    ctx.rest = inputs[2:]
