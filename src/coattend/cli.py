"""The command line: verbs, and nothing that is not said elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import tyro
from rich.console import Console

from coattend.equivariance import diagnose, equivariance_error
from coattend.groups import get_group
from coattend.models import EquivariantNetwork, create_model, is_exact, load_model, model_entry
from coattend.nn import estimate_norm_statistics
from coattend.report import equivariance_table, models_table
from coattend.version import __version__

app = tyro.extras.SubcommandApp()


@app.command
def models(pattern: tyro.conf.Positional[str] = "*") -> int:
    """List the networks: parameters, published count and error.

    Args:
        pattern: Wildcards pick some of them, for example "*p4m*".
    """
    Console().print(models_table(pattern))
    return 0


@app.command
def check(model: tyro.conf.Positional[str], size: int | None = None, group: str | None = None, seed: int = 0) -> int:
    """Measure the equivariance of a network element by element, and name the layer that breaks it.

    Exits with 1 if it is not equivariant. Measured in float64 on random images, batch-norm statistics of fresh
    networks being estimated from random images first.

    Args:
        model: A model's name, with options behind a colon if wanted, or a file written by save_model.
        size: Height and width of the images; by default those of the data set.
        group: The group to check against; by default the network's own, for plain networks p4.
        seed: Seed of weights and images.
    """
    torch.manual_seed(seed)
    network = _network(model)
    assert network.config is not None
    size = size or model_entry(network.config["model"]).image_size
    against = get_group(group) if group else (network.group if network.group.order > 1 else get_group("p4"))
    images = torch.randn(4, network.in_channels, size, size, dtype=torch.float64)
    if not _is_file(model):
        estimate_norm_statistics(network, [images])
    errors = equivariance_error(network, images[:2], against)
    diagnosis = diagnose(network, images[:2], against, tol=1e-10)
    console = Console()
    console.print(equivariance_table(errors, against, f"{model} at {size} x {size}, {against.name}, float64"))
    if against == network.group:
        console.print(f"computed from its layers: {'exact' if is_exact(network, size) else 'not exact'} at this size")
    console.print(str(diagnosis), highlight=False, markup=False)
    return 0 if diagnosis.is_equivariant else 1


def main() -> None:
    """Run a verb; a user's mistake ends in one line and exit code 2."""
    if sys.argv[1:] == ["--version"]:
        Console().print(f"coattend {__version__}", highlight=False)
        return
    try:
        sys.exit(app.cli(prog="coattend", description="Co-attentive equivariant networks."))
    except ValueError as error:
        Console(stderr=True).print(f"coattend: {error}", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)


def _is_file(model: str) -> bool:
    return Path(model).suffix == ".safetensors" or Path(model).is_file()


def _network(model: str) -> EquivariantNetwork:
    return (load_model(model) if _is_file(model) else create_model(model)).double()
