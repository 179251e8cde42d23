"""Which relative poses to keep: the least contributing go first, and what remains is measured anew."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable

import torch
from torch import nn

from coattend.cooccurrence.measure import Contributions
from coattend.cooccurrence.operations import operations
from coattend.nn import group_convolutions, restrict

Measured = Callable[[nn.Module, Iterable[str]], Contributions]  # of the named layers
Kept = dict[str, tuple[int, ...]]


def choose_poses(
    network: nn.Module,
    measure: Measured,
    *,
    keep: int | None = None,
    budget: float | None = None,
    image_shape: tuple[int, int, int] | None = None,
) -> Kept:
    """The relative poses to keep, layer by layer; the network is left as it is.

    With ``keep``, that many in every layer. With ``budget``, as many as the whole network can afford with that share of
    its operations on images of ``image_shape``; poses that contribute little for what they cost go first, and every
    layer keeps at least one. Slices stand in for one another, so contributions do not add up: poses go one by one,
    layer after layer (with a budget, one from each of the cheaper half of the layers), and the rest is measured anew.
    """
    if (keep is None) == (budget is None):
        raise ValueError("say either how many relative poses to keep in every layer, or the budget of operations.")
    rest = copy.deepcopy(network)
    if keep is not None:
        return _down_to(rest, measure, keep)
    assert budget is not None
    if image_shape is None:
        raise ValueError("a budget of operations needs image_shape, (channels, height, width).")
    return _within(rest, measure, budget, image_shape)


def _down_to(rest: nn.Module, measure: Measured, keep: int) -> Kept:
    layers = group_convolutions(rest)
    if not layers:
        raise ValueError("the network has no group convolution, so there are no relative poses to choose from.")
    order = max(layer.group.order for layer in layers.values())
    if not 1 <= keep <= order:
        raise ValueError(f"keep must be from 1 to {order}, the number of relative poses, got {keep}.")
    while any(len(layer.relative) > keep for layer in layers.values()):
        for name, layer in layers.items():
            if len(layer.relative) > keep:
                _drop(rest, name, int(measure(rest, [name])[name].argmin()))
    return {name: layer.relative for name, layer in layers.items()}


def _within(rest: nn.Module, measure: Measured, budget: float, image_shape: tuple[int, int, int]) -> Kept:
    layers, costs = group_convolutions(rest), operations(rest, image_shape)
    per_slice = {name: costs[name] / len(layer.relative) for name, layer in layers.items()}
    spent, allowed = float(sum(costs.values())), budget * sum(costs.values())
    least = spent - sum(per_slice[name] * (len(layer.relative) - 1) for name, layer in layers.items())
    if not 0 < budget <= 1 or allowed < least:
        raise ValueError(
            f"the budget is a share of the operations, from {least / spent:.3f}, where every layer keeps one relative "
            f"pose, to 1, got {budget}."
        )
    while spent > allowed:
        measured = measure(rest, layers)
        worth = {
            name: (float(measured[name].min()) / per_slice[name], int(measured[name].argmin()))
            for name, layer in layers.items()
            if len(layer.relative) > 1
        }
        cheapest = sorted(worth, key=lambda name: worth[name])[: math.ceil(len(worth) / 2)]
        for name in cheapest:
            if spent > allowed:
                _drop(rest, name, worth[name][1])
                spent -= per_slice[name]
    return {name: layer.relative for name, layer in layers.items()}


def _drop(rest: nn.Module, name: str, place: int) -> None:
    relative = group_convolutions(rest)[name].relative
    with torch.no_grad():
        restrict(rest, {name: [t for t in relative if t != relative[place]]})
