"""Build networks by name, and say for which image sizes they are exact."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch

from coattend.equivariance import safe_sizes
from coattend.equivariance.exactness import exactness
from coattend.models.network import EquivariantNetwork, FeatureBackbone, ModelConfig
from coattend.models.options import parse_options
from coattend.models.pretrained import load_pretrained
from coattend.models.registry import build_network, model_entry, network_skeleton, register_user_model, split_name
from coattend.models.user_network import check_user_options, split_address
from coattend.nn.observe import multiply_adds

MOST_MULTIPLY_ADDS = 4 * 10**9  # for one image; a copy with few channels is measured instead of a costlier network


@overload
def create_model(
    name: str, *, features_only: Literal[False] = ..., pretrained: str | bool | None = ..., **options: Any
) -> EquivariantNetwork: ...


@overload
def create_model(
    name: str, *, features_only: Literal[True], pretrained: str | bool | None = ..., **options: Any
) -> FeatureBackbone: ...


def create_model(
    name: str, *, features_only: bool = False, pretrained: str | bool | None = None, **options: Any
) -> EquivariantNetwork | FeatureBackbone:
    """Build a registered network, or any variation of it, in training mode as torch.nn does.

    ``name`` may carry options, ``"a_p4cnn:attention=output,head=max"``; keyword options take precedence. By default
    the names of Table 1 build the networks whose parameter counts the paper prints. With ``features_only`` the head is
    left out and the maps of every stage are returned. Every network takes ``relative``, the relative poses that its
    group convolutions are restricted to: a dictionary by layer, or ``relative=0-2`` for all (docs/restriction.md).
    ``pretrained=True`` loads the weights that are shipped for the network's own dataset, a string those for another;
    ``coattend.models.list_pretrained`` lists them. With another ``num_classes`` the stages are loaded and the head is
    new. ``"my_module:build"`` builds a network of your own.

    >>> sum(p.numel() for p in create_model("a_p4cnn:attention=output").parameters())
    20160
    """
    register_user_model(name, trusted=True)
    entry = model_entry(name)
    given = {**parse_options(split_name(name)[1]), **options}
    if split_address(entry.name) is not None:
        check_user_options(entry.name, given)
    model = build_network(entry, given)
    if pretrained is not None and pretrained is not False:
        load_pretrained(model, entry.dataset if pretrained is True else pretrained)
    return FeatureBackbone(model) if features_only else model


def exactness_line(network: EquivariantNetwork, size: tuple[int, int]) -> str:
    """Return one line for the user: whether the network is exact on images of this size, and what would make it so."""
    name = type(network).__name__ if network.config is None else network.config.model
    if network.group.order == 1:
        return f"{name} is a plain network, equivariant to translations only"
    on = f"exactly equivariant to {network.group.name} on images of {size[0]} x {size[1]}"
    costly = network.config is not None and _multiply_adds(network.config, size) > MOST_MULTIPLY_ADDS
    result = exactness(_narrow(network) if costly else network, size)
    if result.proven:
        return f"{name} is {on}"
    return f"{name} is NOT {on}: {(result.size_matters and _remedies(network, size)) or result.reason}"


def _remedies(network: EquivariantNetwork, size: tuple[int, int]) -> str:
    """Return the nearest sizes and the option that make a network exact, measured on a narrow copy of it."""
    if network.config is None:
        return ""
    model, options = network.config.model, _narrow_options(network.config)
    with torch.random.fork_rng(devices=[]):
        narrow = create_model(model, **options)
        image = torch.zeros(1, network.in_channels, *size, dtype=next(narrow.parameters()).dtype)
        sizes = [f"{h} x {w}" for h, w in safe_sizes(narrow, image) if exactness(narrow, (h, w)).proven]
        remedies = [f"use images of {' or '.join(sizes)} pixels"] if sizes else []
        if network.stride_remedy is not None:
            option, _, value = network.stride_remedy.partition("=")
            if exactness(create_model(model, **{**options, option: value}), size).proven:
                remedies.append(f"{model}:{network.stride_remedy}")
    return ", or ".join(remedies)


def _narrow(network: EquivariantNetwork) -> EquivariantNetwork:
    """Return a copy with few channels, which is exact at the sizes at which the network is."""
    assert network.config is not None
    with torch.random.fork_rng(devices=[]):
        return create_model(network.config.model, **_narrow_options(network.config))


def _narrow_options(config: ModelConfig) -> dict[str, Any]:
    narrow = {"width": 2} if "width" in model_entry(config.model).defaults else {}
    return {**config.options, **narrow}


def _multiply_adds(config: ModelConfig, size: tuple[int, int]) -> int:
    """Return the multiply-adds of a network for one image, without running it; 0 if it does not take the size."""
    skeleton = network_skeleton(model_entry(config.model), config.options)
    try:
        return sum(multiply_adds(skeleton, (skeleton.in_channels, *size)).values())
    except ValueError:
        return 0
