"""Estimate the statistics of batch norms from data, as [CW16] do before every test."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from coattend.nn.checks import check_model


def estimate_norm_statistics(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replace the running statistics of all batch norms by their uniform average over the batches.

    Dropout is off and no gradient is kept; modes and momenta are put back afterwards.
    """
    check_model("estimate_norm_statistics", model)
    if not isinstance(batches, Iterable):
        raise ValueError(f"estimate_norm_statistics expects batches to iterate over, got {type(batches).__name__}.")
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    modes = [(module, module.training) for module in model.modules()]
    momenta = [norm.momentum for norm in norms]
    model.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # torch's word for a cumulative average
        norm.train()
    try:
        with torch.no_grad():
            for batch in batches:
                model(batch)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module, mode in modes:
            module.training = mode
