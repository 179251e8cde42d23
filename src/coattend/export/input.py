"""What an exported network takes: pixels or normalized images, and of which shape."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from coattend.equivariance.exactness import in_channels_of
from coattend.models import EquivariantNetwork, model_entry
from coattend.models.classifier import Classifier
from coattend.models.turned import TurnedNetwork
from coattend.nn.observe import evaluating

MOST_PIXELS = 2048
PIXELS, NORMALIZED = "pixels", "normalized"  # images from 0 to 255, or the output of a preprocessing elsewhere
KINDS = (PIXELS, NORMALIZED)


@dataclass(frozen=True)
class Input:
    """The images of a network: their kind, ``"pixels"`` or ``"normalized"``, and channels, height and width."""

    kind: str
    shape: tuple[int, int, int]

    def __str__(self) -> str:
        """Return shape and range in words."""
        shape = " x ".join(map(str, self.shape))
        return f"images {shape}, {'pixels from 0 to 255' if self.kind == PIXELS else 'normalized'}"

    def probes(self, count: int, seed: int) -> Tensor:
        """Return random images that anyone can draw again with numpy's default generator.

        Pixels are whole numbers from 0 to 255, normalized images have the standard normal distribution.
        """
        generator, shape = np.random.default_rng(seed), (count, *self.shape)
        drawn = generator.integers(256, size=shape) if self.kind == PIXELS else generator.standard_normal(shape)
        return torch.from_numpy(drawn.astype(np.float32))


def input_of(network: nn.Module, size: int | None = None) -> Input:
    """Return what a float32 network is exported for; ``size`` overrides the height and width of the images."""
    if not isinstance(network, nn.Module):
        raise ValueError(f"export expects a network, an nn.Module, got {type(network).__name__}.")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int)):
        raise ValueError(f"size must be a whole number, the height and width of the images, got {size!r}.")
    dtypes = {p.dtype for p in network.parameters()}
    if dtypes - {torch.float32}:
        given = ", ".join(sorted(map(str, dtypes)))
        raise ValueError(f"export expects a network with float32 parameters, got {given}; call network.float() first.")
    single = without_turns(network)
    inner = single.network if isinstance(single, Classifier) else single
    height, width = _image_size(single) if size is None else (size, size)
    images = Input(PIXELS if isinstance(single, Classifier) else NORMALIZED, (in_channels_of(inner), height, width))
    _require_suitable(network, images)
    return images


def describe_input(network: nn.Module, images: Input) -> dict[str, str]:
    """Return the metadata of an exported file, from which it can be used without this library."""
    description = {"coattend.input": images.kind, "coattend.image_shape": json.dumps(images.shape)}
    if images.kind == PIXELS:
        description["coattend.input_range"] = "0-255"
    if isinstance(network, TurnedNetwork):
        description["coattend.turned"] = json.dumps(network.copies.degrees)
    single = without_turns(network)
    if isinstance(single, Classifier):
        description["coattend.classes"] = json.dumps(single.classes)
        description["coattend.provenance"] = single.provenance
    return description


def without_turns(network: nn.Module) -> nn.Module:
    """Return the network that sees one image, of one that averages over turned copies."""
    return network.model if isinstance(network, TurnedNetwork) else network


def _image_size(network: nn.Module) -> tuple[int, int]:
    """Return height and width of the images that a network was trained on, else those of its dataset in the paper."""
    if isinstance(network, Classifier):
        return network.image_shape[1:]
    if not isinstance(network, EquivariantNetwork) or network.config is None:
        raise ValueError(
            f"how large are the images of {type(network).__name__}? Pass size=; it is known only for networks built by "
            "create_model."
        )
    if network.image_shape is not None:
        return network.image_shape[1:]
    size = model_entry(network.config.model).image_size
    return size, size


def _require_suitable(network: nn.Module, images: Input) -> None:
    _, height, width = images.shape
    if not 1 <= min(height, width) <= max(height, width) <= MOST_PIXELS:
        raise ValueError(f"the images of an export must be 1 to {MOST_PIXELS} pixels high and wide, got {height}.")
    try:
        with evaluating(network):
            network(images.probes(1, seed=0))
    except (ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(
            f"the network cannot take images of {height} x {width} pixels ({reason}); choose another size."
        ) from error
