"""Converted networks as files: the weights, and what converts the plain network again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from coattend._files import checked_path, write_whole
from coattend.conversion.equivariantize import Equivariantized, equivariantize
from coattend.models.container import packed, read_header, read_tensors, require_finite
from coattend.models.network import EquivariantNetwork, ModelConfig
from coattend.models.options import decoded_options, encoded_option
from coattend.models.registry import build_network, model_entry
from coattend.version import __version__

FORMAT = "coattend-converted"


def save_converted(network: Equivariantized, path: str | Path) -> None:
    """Write a converted network into a safetensors file, for :func:`load_converted`.

    The file holds the weights and how the network was converted, but no code: loading it needs the plain network again,
    except for networks that create_model built, whose name and options are in the file.
    """
    if not isinstance(network, Equivariantized):
        raise ValueError(f"save_converted expects what equivariantize returned, got {type(network).__name__}.")
    state = network.state_dict()
    require_finite(state, "the network")
    header = {
        "format": FORMAT,
        "coattend_version": __version__,
        "group": json.dumps(encoded_option(network.group)),
        "image_shape": json.dumps(network.image_shape),
        "conversion": json.dumps(network.options),
    }
    if network.config is not None:
        header["model"] = network.config.model
        header["options"] = json.dumps({key: encoded_option(value) for key, value in network.config.options.items()})
    write_whole(checked_path(path), packed(state, header))


def load_converted(path: str | Path, model: nn.Module | None = None) -> Equivariantized:
    """Return a network written by :func:`save_converted`; ``model`` is the plain network, with any weights."""
    path = checked_path(path)
    if not path.is_file():
        raise ValueError(f"there is no file {path}; expected a .safetensors file written by save_converted.")
    metadata, _ = read_header(path)
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path} is not a file written by save_converted; load_model reads those of save_model.")
    try:
        group = decoded_options(json.dumps({"group": json.loads(metadata["group"])}))["group"]
        options: Mapping[str, Any] = json.loads(metadata["conversion"])
        size = json.loads(metadata["image_shape"])[1]
        config = ModelConfig(metadata["model"], decoded_options(metadata["options"])) if "model" in metadata else None
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise ValueError(f"the header of {path} cannot be read ({error}); the file is damaged.") from error
    if model is None and config is None:
        raise ValueError(
            f"{path} holds a network of your own code; pass the plain network, load_converted(path, model)."
        )
    plain = build_network(model_entry(config.model), config.options) if model is None and config else model
    assert plain is not None
    tensors = read_tensors(path, metadata)
    dtypes = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if isinstance(plain, EquivariantNetwork) and len(dtypes) == 1:
        plain.to(dtypes.pop())
    network = equivariantize(plain, group, size=size, verify=False, **options)
    expected = {name: tensor.shape for name, tensor in network.state_dict().items()}
    if expected != {name: tensor.shape for name, tensor in tensors.items()}:
        raise ValueError(
            f"{path} does not fit the plain network {type(plain).__name__}; pass the one that was converted."
        )
    network.load_state_dict(tensors)
    return network
