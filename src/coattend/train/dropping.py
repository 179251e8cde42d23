"""Relative poses that drop out while a network is trained, so that only its start is on the full group."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from coattend.cooccurrence import Probe, choose_poses, contributions
from coattend.models import EquivariantNetwork
from coattend.nn import PoseConv2d, group_convolutions
from coattend.train.batches import Examples
from coattend.train.recipe import Recipe

MEASURED_IMAGES = 256


def poses_due(recipe: Recipe, network: EquivariantNetwork, epoch: int) -> int | None:
    """How many relative poses every layer is cut down to before this epoch; None if it has no more than that.

    Each of the recipe's moments that has passed takes an equal part of what is to go.
    """
    order = network.group.order
    passed = sum(epoch >= moment * recipe.epochs for moment in recipe.drop_poses_at)
    share = 1 - (1 - recipe.keep_poses) * passed / max(1, len(recipe.drop_poses_at))
    keep = max(1, round(share * order))
    most = max((len(layer.relative) for layer in group_convolutions(network).values()), default=0)
    return keep if most > keep else None


def drop_poses(network: EquivariantNetwork, optimizer: Optimizer, examples: Examples, keep: int) -> None:
    """Cut every layer down to the ``keep`` poses that contribute most, and what the optimiser remembers with it."""
    probe = Probe.of(network, examples.images[:MEASURED_IMAGES], examples.labels[:MEASURED_IMAGES])
    kept = choose_poses(network, lambda rest, layers: contributions(rest, probe, layers=layers), keep=keep)
    before = {name: dict(layer.named_parameters()) for name, layer in group_convolutions(network).items()}
    memories = {name: _cut_memory(optimizer, layer, kept[name]) for name, layer in group_convolutions(network).items()}
    network.restrict(kept)
    for name, layer in group_convolutions(network).items():
        for key, parameter in layer.named_parameters():
            if parameter is not before[name][key]:
                _replace(optimizer, before[name][key], parameter, memories[name].get(key, {}))


def _cut_memory(optimizer: Optimizer, layer: PoseConv2d, kept: tuple[int, ...]) -> dict[str, dict[str, object]]:
    """The optimiser's state of the parameters that shrink: what has a parameter's shape shrinks with it."""
    states = {name: dict(optimizer.state.get(p, {})) for name, p in layer.named_parameters()}
    shapes = {name: p.shape for name, p in layer.named_parameters()}
    for key in states["weight"]:
        shaped = {name: s[key] for name, s in states.items() if getattr(s.get(key), "shape", None) == shapes[name]}
        if "weight" in shaped:
            for name, values in layer.cut(shaped, kept).items():
                states[name][key] = values.clone()
    return states


def _replace(optimizer: Optimizer, old: nn.Parameter, new: nn.Parameter, memory: dict[str, object]) -> None:
    for group in optimizer.param_groups:
        group["params"] = [new if parameter is old else parameter for parameter in group["params"]]
    optimizer.state.pop(old, None)
    if memory:
        optimizer.state[new] = memory
