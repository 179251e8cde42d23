"""The library ``torch.ops.coattend`` and how operators are added to it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from coattend.functional.dispatch import in_dual_level

LIBRARY = torch.library.Library("coattend", "DEF")


def define(schema: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Register an operator with one kernel for all devices and one that computes shapes only."""
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


def differentiate_first_output(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a backward function that gets no zeros as the gradients of further outputs, which have none.

    What it saves for backward has to call ``ctx.set_materialize_grads(False)``.
    """

    @functools.wraps(backward)
    def differentiate(ctx: Any, grad: Tensor | None, *rest: None) -> Any:
        return (None,) * len(ctx.needs_input_grad) if grad is None else backward(ctx, grad, *rest)

    return differentiate


def save_first_two(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Save the two tensors for the backward pass, and the other arguments with them."""
    ctx.save_for_backward(*inputs[:2])
    ctx.rest = inputs[2:]


def _has_tangent(tensor: Tensor) -> bool:
    return forward_ad.unpack_dual(tensor).tangent is not None
