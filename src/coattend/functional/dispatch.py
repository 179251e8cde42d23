"""Which implementation a function uses: the operators of ``torch.ops.coattend`` or the plain formula."""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor
from torch.autograd import forward_ad

# torch 2.6 cannot tell an export from a compilation; there both decompose.
is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)


def _finds_operators() -> bool:
    try:
        return importlib.util.find_spec("coattend.functional._kernels.ops") is not None
    except ModuleNotFoundError:
        return False


HAS_OPERATORS = _finds_operators()


def decomposes(x: Tensor) -> bool:
    """Return whether a function computes its plain formula instead of calling an operator.

    It does without operators; in a graph that is exported or traced, which has to run where this library is not
    installed; for GPUs under torch.compile, since Inductor fuses the formula; for distributed tensors, whose sharding
    rules cover standard operations only; and in the transforms of torch.func (vmap, jvp) and forward-mode derivatives,
    which have no rule for the operators.
    """
    if not HAS_OPERATORS or is_exporting():
        return True
    if torch.compiler.is_compiling():
        return x.device.type != "cpu"
    return not is_eager(x)


def is_eager(x: Tensor) -> bool:
    """Return whether operations on a tensor run one by one, neither recorded, transformed nor distributed."""
    return not (
        is_exporting()
        or torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or in_dual_level()
        or torch._C._is_tracing()
        or is_distributed(x)
    )


def is_distributed(x: Tensor) -> bool:
    """Return whether a tensor is a DTensor, without the import of its module, which takes as long as that of torch."""
    return type(x).__module__.startswith("torch.distributed.tensor")


def replicated(x: Tensor, like: Tensor) -> Tensor:
    """Return a tensor on the mesh of a distributed one; operations do not mix them with plain tensors."""
    if not is_distributed(like):
        return x
    from torch.distributed.tensor import DTensor

    assert isinstance(like, DTensor)
    return DTensor.from_local(x, like.device_mesh)


def in_dual_level() -> bool:
    """Return whether tensors may carry tangents of forward-mode differentiation."""
    return forward_ad._current_level >= 0


def differentiates_again() -> bool:
    """Return whether the gradient being computed will itself be differentiated, backward or forward."""
    return torch.is_grad_enabled() or in_dual_level()


def autocasts(x: Tensor) -> bool:
    """Return whether autocast is on for the device of a tensor; some devices (meta) do not support it."""
    device = x.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def computed_type(x: Tensor) -> torch.dtype:
    """Return the type in which a convolution of a tensor is computed: that of autocast where it is on.

    Autocast leaves float64 alone.
    """
    return torch.get_autocast_dtype(x.device.type) if autocasts(x) and x.dtype != torch.float64 else x.dtype


def build_kernels() -> bool:
    """Load the C++ kernels, build them first unless they are in the cache, and return whether they are available.

    Constructing the first layer does this too, so that only programs that call functions alone, or unpickle a model,
    need it. Without kernels results are the same and co-attention is slower; the reason is logged once.
    ``COATTEND_KERNELS=off`` in the environment turns the kernels off.
    """
    if not HAS_OPERATORS:
        return False
    from coattend.functional._kernels import cpu

    return cpu.build_library()
