"""Training that runs away: notice it, say where, and what the paper did about it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from coattend.nn import synchronise_norms
from coattend.train.run_folder import RunError


def check_loss(loss: float, limit: float, step: int, epoch: int, model: nn.Module, batch: Tensor) -> None:
    """Stop the run if the loss is not finite or beyond the limit."""
    if math.isfinite(loss) and loss <= limit:
        return
    synchronise_norms(model, False)  # this process alone runs the batch again; the run ends here
    name, size = largest_activation(model, batch)
    raise RunError(
        f"training diverged: the loss is {loss:g} at step {step} (epoch {epoch}), the largest activation {size:.3g} "
        f"is that of {name}. Equivariant networks are more prone to this than plain ones; the paper clipped inputs to "
        "their 99th percentile (--set clip=2.3) and lowered the learning rate (--set lr=0.01). The last good "
        "checkpoint stays."
    )


def largest_activation(model: nn.Module, batch: Tensor) -> tuple[str, float]:
    """The layer whose output is largest in magnitude, not-a-number counting as infinite."""
    sizes: dict[str, float] = {}
    handles = []
    for name, module in model.named_modules():

        def hook(_: nn.Module, __: Any, output: Any, name: str = name) -> None:
            if isinstance(output, Tensor):
                sizes[name] = torch.nan_to_num(output.detach().abs().max().float(), nan=math.inf).item()

        if next(module.children(), None) is None:
            handles.append(module.register_forward_hook(hook))
    try:
        with torch.no_grad():
            model(batch)
    finally:
        for handle in handles:
            handle.remove()
    return max(sizes.items(), key=lambda item: item[1])
