"""``coattend check``: the equivariance of a network, element by element, and the certificate of an exported file."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from rich.console import Console

from coattend.equivariance import diagnose
from coattend.export import certificate_table, check_certificate
from coattend.export.shapes import MOST_PIXELS
from coattend.groups import get_group
from coattend.models import EquivariantNetwork, create_model, exactness_line, load_model, model_entry
from coattend.models.classifier import weights_file
from coattend.models.hub import is_hub_address
from coattend.nn.observe import estimate_norm_statistics
from coattend.report.console import equivariance_table

EXPORTED = (".onnx", ".pt2")  # measured as their certificates say


def check_network(model: str, size: int | None, group: str | None, seed: int, console: Console) -> bool:
    """Measure and print; whether all of it holds."""
    if size is not None and not 1 <= size <= MOST_PIXELS:
        raise ValueError(f"--size expects the height and width of images, 1 to {MOST_PIXELS} pixels, got {size}.")
    torch.manual_seed(seed)
    file = _file(model)
    if file is not None and file.suffix in EXPORTED and (size is not None or group is not None):
        raise ValueError(
            f"{file} is checked at the size and over the group of its certificate; leave --size and --group out, or "
            "check the network that it was exported from."
        )
    certified = None if file is None else check_certificate(file)
    if certified is not None:
        console.print(certificate_table(*certified, str(file)))
        holds = all(line.agrees for line in certified[1])
        if not holds or (file is not None and file.suffix in EXPORTED):
            return holds
    network = (create_model(model) if file is None else load_model(file)).double()
    height, width = (size, size) if size is not None else _image_size(network)
    against = get_group(group) if group else (network.group if network.group.order > 1 else get_group("p4"))
    images = torch.randn(4, network.in_channels, height, width, dtype=torch.float64)
    if file is None:
        estimate_norm_statistics(network, [images])
    diagnosis = diagnose(network, images[:2], against, tol=1e-10)
    console.print(f"{model} at {height} x {width}, {against.name}, float64", soft_wrap=True)
    console.print(equivariance_table(diagnosis.errors, against))
    if against == network.group:
        console.print(exactness_line(network, (height, width)), soft_wrap=True)
    console.print(str(diagnosis))
    return diagnosis.is_equivariant


def _file(model: str) -> Path | None:
    """The file that is meant: itself, or the weights of a run folder; None for the name of a network."""
    if os.path.isdir(model) or is_hub_address(model):
        return weights_file(model)
    path = Path(model)
    if os.path.isfile(model):
        return path
    if path.suffix in (".safetensors", ".pt", *EXPORTED):
        raise ValueError(f"there is no file {model[:200]}; expected one that save_model or `coattend export` wrote.")
    return None


def _image_size(network: EquivariantNetwork) -> tuple[int, int]:
    """Height and width of the images that the network was trained on, else of its data set in the paper."""
    if network.image_shape is not None:
        return network.image_shape[1:]
    assert network.config is not None
    size = model_entry(network.config.model).image_size
    return size, size
