"""What the operators of ``torch.ops.coattend`` share: how they are registered, and when they are not used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LIBRARY = torch.library.Library("coattend", "DEF")

# torch 2.6 cannot tell an export from a compilation; there both decompose.
is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)


def decomposes(x: Tensor) -> bool:
    """Whether standard operations serve better than the operators here.

    An exported graph has to run where this library is not installed; Inductor fuses them for GPUs; the transforms of
    torch.func (vmap, jvp) know no rule for the operators.
    """
    if is_exporting():
        return True
    if torch.compiler.is_compiling():
        return x.device.type != "cpu"
    return torch._C._are_functorch_transforms_active()


def define(schema: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Register an operator with one kernel for all devices, and one that only knows shapes."""
    name = schema.partition("(")[0]
    LIBRARY.define(schema, tags=torch.Tag.pt2_compliant_tag)
    LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"coattend::{name}", fake, lib=LIBRARY)


def save_first_two(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Keep the two tensors for the backward, and the other arguments beside them."""
    ctx.save_for_backward(*inputs[:2])
    ctx.rest = inputs[2:]
