"""What images a network takes."""

from __future__ import annotations

import torch
from torch import nn

from coattend.equivariance.exactness import in_channels_of
from coattend.models import EquivariantNetwork, model_entry
from coattend.nn.observe import evaluating

MOST_PIXELS = 2048


def image_shape_of(network: nn.Module, size: int | None) -> tuple[int, int, int]:
    """Channels, height and width of the images that a float32 network is exported for."""
    if not isinstance(network, nn.Module):
        raise ValueError(f"export expects a network, an nn.Module, got {type(network).__name__}.")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int)):
        raise ValueError(f"size must be a whole number, the height and width of the images, got {size!r}.")
    dtypes = {p.dtype for p in network.parameters()}
    if dtypes - {torch.float32}:
        found = ", ".join(sorted(map(str, dtypes)))
        raise ValueError(f"export expects a network with float32 parameters, got {found}; call network.float() first.")
    if size is None:
        if not isinstance(network, EquivariantNetwork) or network.config is None:
            raise ValueError(
                f"how large are the images of {type(network).__name__}? Pass size=; it is known only for networks "
                "built by create_model."
            )
        trained = network.image_shape
        size = model_entry(network.config.model).image_size if trained is None else trained[1]
    shape = (in_channels_of(network), size, size)
    _require_suitable(network, shape)
    return shape


def _require_suitable(network: nn.Module, shape: tuple[int, int, int]) -> None:
    _, height, width = shape
    if not 1 <= height <= MOST_PIXELS:
        raise ValueError(f"the images of an export must be 1 to {MOST_PIXELS} pixels high and wide, got {height}.")
    try:
        with evaluating(network):
            network(torch.zeros(1, *shape, dtype=torch.float32))
    except (ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(
            f"the network cannot take images of {height} x {width} pixels ({reason}); choose another size."
        ) from error
