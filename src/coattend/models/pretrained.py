"""Weights that are shipped with the package: small safetensors files, each beside its model card."""

from __future__ import annotations

import re
from pathlib import Path

from coattend.models.network import EquivariantNetwork
from coattend.models.registry import canonical_name, model_entry
from coattend.models.serialization import load_model, read_model_file

WEIGHTS = Path(__file__).parent / "weights"


def list_pretrained(data: str = "*") -> list[tuple[str, str]]:
    """Return what is shipped, as pairs for ``create_model(name, pretrained=data)``."""
    return sorted((_name(path.stem), path.parent.name) for path in WEIGHTS.glob(f"{data}/*.safetensors"))


def load_pretrained(model: EquivariantNetwork, data: str) -> None:
    """Load the shipped weights of a network that was trained on a dataset; with other classes, those of its stages."""
    assert model.config is not None
    entry, options = model_entry(model.config.model), model.config.options
    if model.num_classes == entry.num_classes:
        load_model(pretrained_file(canonical_name(entry, options), data), into=model)
        return
    file = pretrained_file(canonical_name(entry, {**options, "num_classes": entry.num_classes}), data)
    stages = {name: tensor for name, tensor in read_model_file(file)[1].items() if not name.startswith("head.")}
    model.load_state_dict({**model.state_dict(), **stages})


def pretrained_file(name: str, data: str) -> Path:
    """Return the file with the shipped weights of a network, given by its canonical name."""
    shipped = list_pretrained()
    if (name, data) not in shipped:
        available = ", ".join(f"{model} on {data}" for model, data in shipped) or "none"
        raise ValueError(
            f"no weights of {name} trained on {data} come with the package; there are: {available}. Files of networks "
            "that you trained yourself are read by load_model."
        )
    return WEIGHTS / data / f"{file_stem(name)}.safetensors"


def file_stem(name: str) -> str:
    """Return a model's name as part of a file's name, from which it can be recovered.

    >>> file_stem("a_p4cnn:attention=output,head=max")
    'a_p4cnn+attention=output+head=max'
    """
    return re.sub(r"[:,]", "+", name).replace("/", "_")


def _name(stem: str) -> str:
    return stem.replace("+", ":", 1).replace("+", ",")
