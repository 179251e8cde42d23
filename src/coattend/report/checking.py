"""``coattend check``: the equivariance of a network, element by element, and the certificate of an exported file."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Console

from coattend.equivariance import diagnose, equivariance_error
from coattend.export import certificate_table, check_certificate
from coattend.groups import get_group
from coattend.models import EquivariantNetwork, create_model, is_exact, load_model, model_entry
from coattend.nn import estimate_norm_statistics
from coattend.report.console import equivariance_table


def check_network(model: str, size: int | None, group: str | None, seed: int, console: Console) -> bool:
    """Measure and print; whether all of it holds."""
    torch.manual_seed(seed)
    certified = check_certificate(model)
    if certified is not None:
        console.print(certificate_table(*certified, model))
        holds = all(line.agrees for line in certified[1])
        if not holds or Path(model).suffix in (".onnx", ".pt2"):
            return holds
    network = _network(model)
    assert network.config is not None
    size = size or model_entry(network.config["model"]).image_size
    against = get_group(group) if group else (network.group if network.group.order > 1 else get_group("p4"))
    images = torch.randn(4, network.in_channels, size, size, dtype=torch.float64)
    if not _is_file(model):
        estimate_norm_statistics(network, [images])
    errors = equivariance_error(network, images[:2], against)
    diagnosis = diagnose(network, images[:2], against, tol=1e-10)
    console.print(equivariance_table(errors, against, f"{model} at {size} x {size}, {against.name}, float64"))
    if against == network.group:
        console.print(f"computed from its layers: {'exact' if is_exact(network, size) else 'not exact'} at this size")
    console.print(str(diagnosis), highlight=False, markup=False)
    return diagnosis.is_equivariant


def _is_file(model: str) -> bool:
    return Path(model).suffix == ".safetensors" or Path(model).is_file()


def _network(model: str) -> EquivariantNetwork:
    return (load_model(model) if _is_file(model) else create_model(model)).double()
