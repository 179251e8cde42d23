"""Group convolutions over some of their relative poses: restricted copies of models, and the choice of poses."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from torch import Tensor, nn

from coattend.models.network import EquivariantNetwork, ModelConfig
from coattend.nn import AttentionLayer, PoseConv2d
from coattend.nn.checks import check_model
from coattend.nn.observe import multiply_adds

Model = TypeVar("Model", bound=nn.Module)
Relative = Mapping[str, Iterable[int]] | Iterable[int] | int
RelativePoses = dict[str, tuple[int, ...]]
MeasureLayers = Callable[[nn.Module, Iterable[str]], dict[str, Tensor]]  # contributions of some layers


def group_convolutions(model: nn.Module) -> dict[str, PoseConv2d]:
    """Return the layers that have relative poses to choose from, by name; those of attention layers do not count."""
    check_model("group_convolutions", model)
    inside = {id(part) for m in model.modules() if isinstance(m, AttentionLayer) for part in m.modules()}
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, PoseConv2d) and layer.filter_on_group and layer.group.order > 1 and id(layer) not in inside
    }


def restricted_poses(model: nn.Module) -> RelativePoses:
    """Return the relative poses of the group convolutions that do not have all of them."""
    return {name: layer.relative for name, layer in group_convolutions(model).items() if layer.is_restricted}


def restricted(model: Model, relative: Relative) -> Model:
    """Return a copy of a model whose group convolutions cover some of their relative poses only.

    ``relative`` gives the poses by layer, or once for all layers. The poses that remain keep their weights, and the
    model itself does not change. Networks of :func:`create_model` record their poses, so that files restore them.

    >>> from coattend.nn import GroupConv2d
    >>> model = nn.Sequential(GroupConv2d(8, 8, 3, "p4"), GroupConv2d(8, 8, 3, "p4"))
    >>> restricted(model, {"1": (0, 2)})[1].relative
    (0, 2)
    """
    check_model("restricted", model)
    layers = group_convolutions(model)
    by_layer = relative if isinstance(relative, Mapping) else dict.fromkeys(layers, relative)
    unknown = [name for name in by_layer if name not in layers]
    if unknown:
        raise ValueError(
            f"no group convolution is called {', '.join(map(repr, unknown))}; those of this model are "
            f"{', '.join(layers) or 'none'}."
        )
    # deepcopy takes what its memo holds for an object instead of copying the object.
    memo = {id(layers[name]): layers[name].restricted(poses) for name, poses in by_layer.items()}  # type: ignore[arg-type]
    result = copy.deepcopy(model, memo)
    for network in result.modules():
        if isinstance(network, EquivariantNetwork) and network.config is not None and restricted_poses(network):
            options = {**network.config.options, "relative": restricted_poses(network)}
            network.config = ModelConfig(network.config.model, options)
    return result


def choose_poses(
    network: nn.Module,
    measure: MeasureLayers,
    *,
    keep: int | None = None,
    budget: float | None = None,
    image_shape: tuple[int, int, int] | None = None,
) -> RelativePoses:
    """Return the relative poses to keep in each group convolution.

    With ``keep``, that many in every layer. With ``budget``, as many as fit into that share of the network's
    multiply-adds on images of ``image_shape``: poses that contribute little relative to their cost are removed first,
    and every layer keeps at least one.

    Slices can replace one another, so contributions do not add up. Poses are therefore removed one at a time from layer
    after layer (with a budget, one from each of the cheaper half of the layers), and the remaining ones are measured
    again.
    """
    if (keep is None) == (budget is None):
        raise ValueError(
            "choose_poses expects either keep, how many relative poses to keep in every layer, or budget, the share of "
            f"multiply-adds to spend, got keep={keep} and budget={budget}."
        )
    if keep is not None:
        return _choose_number(network, measure, keep)
    assert budget is not None
    if image_shape is None:
        raise ValueError("a budget of multiply-adds needs image_shape, (channels, height, width).")
    return _choose_within(network, measure, budget, image_shape)


def _choose_number(network: nn.Module, measure: MeasureLayers, keep: int) -> RelativePoses:
    poses = _all_poses(network)
    if not poses:
        raise ValueError("the network has no group convolution, so there are no relative poses to choose from.")
    order = max(layer.group.order for layer in group_convolutions(network).values())
    if not 1 <= keep <= order:
        raise ValueError(f"keep must be from 1 to {order}, the number of relative poses, got {keep}.")
    while any(len(relative) > keep for relative in poses.values()):
        for name, relative in poses.items():
            if len(relative) > keep:
                poses[name] = _without(relative, int(measure(network, [name])[name].argmin()))
                network = restricted(network, {name: poses[name]})
    return poses


def _choose_within(
    network: nn.Module, measure: MeasureLayers, budget: float, image_shape: tuple[int, int, int]
) -> RelativePoses:
    poses, costs = _all_poses(network), multiply_adds(network, image_shape)
    per_pose = {name: costs[name] / len(relative) for name, relative in poses.items()}
    spent, allowed = float(sum(costs.values())), budget * sum(costs.values())
    least = spent - sum(per_pose[name] * (len(relative) - 1) for name, relative in poses.items())
    if not 0 < budget <= 1 or allowed < least:
        raise ValueError(
            f"the budget is a share of the multiply-adds, from {least / spent:.3f}, where every layer keeps one "
            f"relative pose, to 1, got {budget}."
        )
    while spent > allowed:
        measured = measure(network, poses)
        worth = {
            name: (float(measured[name].min()) / per_pose[name], int(measured[name].argmin()))
            for name, relative in poses.items()
            if len(relative) > 1
        }
        cheapest = sorted(worth, key=lambda name: worth[name])[: math.ceil(len(worth) / 2)]
        for name in cheapest:
            if spent > allowed:
                poses[name] = _without(poses[name], worth[name][1])
                spent -= per_pose[name]
        network = restricted(network, {name: poses[name] for name in cheapest})
    return poses


def _all_poses(network: nn.Module) -> RelativePoses:
    return {name: layer.relative for name, layer in group_convolutions(network).items()}


def _without(relative: tuple[int, ...], index: int) -> tuple[int, ...]:
    return relative[:index] + relative[index + 1 :]
