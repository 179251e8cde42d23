"""Whether a network of the zoo is exactly equivariant at an image size, and which sizes or options make it so."""

from __future__ import annotations

import torch

from coattend.equivariance import safe_sizes
from coattend.equivariance.exactness import exactness
from coattend.models.factory import create_model
from coattend.models.network import EquivariantNetwork
from coattend.models.registry import model_entry


def exactness_line(network: EquivariantNetwork, size: tuple[int, int]) -> str:
    """Return one line for the user: whether the network is exact on images of this size, and what would make it so."""
    name = type(network).__name__ if network.config is None else network.config.model
    if network.group.order == 1:
        return f"{name} is a plain network, equivariant to translations only"
    on = f"exactly equivariant to {network.group.name} on images of {size[0]} x {size[1]}"
    result = exactness(network, size)
    if result.proven:
        return f"{name} is {on}"
    return f"{name} is NOT {on}: {(result.size_matters and _remedies(network, size)) or result.reason}"


def _remedies(network: EquivariantNetwork, size: tuple[int, int]) -> str:
    """Return the nearest sizes and the option that make a network exact, measured on a narrow copy of it."""
    if network.config is None:
        return ""
    model, options = network.config.model, dict(network.config.options)
    if "width" in model_entry(model).defaults:
        options["width"] = 2
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
