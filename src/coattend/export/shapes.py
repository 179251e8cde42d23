"""What images a network takes."""

from __future__ import annotations

import torch
from torch import nn

from coattend.models import EquivariantNetwork, model_entry
from coattend.models.exactness import in_channels_of


def image_shape_of(network: nn.Module, size: int | None) -> tuple[int, int, int]:
    """Channels, height and width of the images that a float32 network is exported for."""
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
        size = model_entry(network.config["model"]).image_size
    return in_channels_of(network), size, size
