"""Optimizers: learning rates and weight decay by kind of parameter."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from coattend.nn import AttentionLayer, GroupLayerNorm2d, PoseConv2d
from coattend.train.recipe import Recipe

NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, GroupLayerNorm2d)  # _NormBase: of batches and instances


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Return the recipe's optimizer over groups of parameters, each with its ``base_lr``."""
    groups = parameter_groups(model, recipe)
    if recipe.optimizer == "adam":
        return torch.optim.Adam(groups, eps=recipe.eps)
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, eps=recipe.eps)
    return torch.optim.SGD(groups, momentum=recipe.momentum, nesterov=recipe.optimizer == "nesterov")


def parameter_groups(model: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """Return groups of parameters with equal learning rate and decay, in the model's order, for any torch optimizer.

    Attention vectors, norms and biases are not decayed unless the recipe says so. Attention vectors have two axes: a
    rule such as ``p.ndim < 2`` does not match them.
    """
    attention = _parameters_of(model, AttentionLayer)
    norms = _parameters_of(model, NORMS)
    inside = {id(part) for m in model.modules() if isinstance(m, AttentionLayer) for part in m.modules()}
    layers = [m for m in model.modules() if isinstance(m, (PoseConv2d, nn.Linear, nn.Conv2d)) and id(m) not in inside]
    head = {id(p) for last in layers[-1:] for p in last.parameters()}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        lr, decay = recipe.lr, recipe.weight_decay
        if id(parameter) in attention:
            lr *= recipe.attention_lr
            decay *= recipe.decay_attention
        elif id(parameter) in norms or name.endswith("bias"):
            lr *= recipe.bias_lr if name.endswith("bias") else 1.0
            decay *= recipe.decay_norms_and_biases
        if id(parameter) in head:
            lr *= recipe.head_lr
        groups.setdefault((lr, decay), []).append(parameter)
    return [
        {"params": parameters, "lr": lr, "base_lr": lr, "weight_decay": decay}
        for (lr, decay), parameters in groups.items()
    ]


def set_learning_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set the learning rate of every group to its ``base_lr`` times a factor."""
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor


def _parameters_of(model: nn.Module, kinds: type[nn.Module] | tuple[type[nn.Module], ...]) -> set[int]:
    return {id(p) for m in model.modules() if isinstance(m, kinds) for p in m.parameters()}
