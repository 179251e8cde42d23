"""Trained networks inside the package: small safetensors files, each with a model card beside it."""

from __future__ import annotations

import re
from pathlib import Path

from torch import nn

WEIGHTS = Path(__file__).parent / "weights"


def list_pretrained(data: str = "*") -> list[tuple[str, str]]:
    """What is shipped: pairs for ``create_model(name, pretrained=data)``."""
    return sorted((_name(path.stem), path.parent.name) for path in WEIGHTS.glob(f"{data}/*.safetensors"))


def load_pretrained(model: nn.Module, name: str, data: str) -> None:
    """Load the weights that a network of that name got by training on a data set."""
    from coattend.models.files import read_model_file  # which builds networks by name, so it stands above

    model.load_state_dict(read_model_file(pretrained_file(name, data))[1])


def pretrained_file(name: str, data: str) -> Path:
    """Where the trained weights of a network lie, options behind its name in alphabetical order."""
    path = WEIGHTS / data / f"{file_stem(name)}.safetensors"
    if not path.is_file():
        shipped = ", ".join(f"{model} on {data}" for model, data in list_pretrained()) or "none"
        raise ValueError(
            f"no weights of {name} trained on {data} come with the package; there are: {shipped}. `coattend train "
            f"{name} --data {data}` makes them, load_model reads them."
        )
    return path


def file_stem(name: str) -> str:
    """A model's name as part of a file's name, from which it can be read again.

    >>> file_stem("a_p4cnn:attention=output,head=max")
    'a_p4cnn+attention=output+head=max'
    """
    return re.sub(r"[:,]", "+", name).replace("/", "_")


def _name(stem: str) -> str:
    return stem.replace("+", ":", 1).replace("+", ",")
