"""Trained networks inside the package: small safetensors files, each with a model card beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coattend.groups import FiniteGroup, get_group
from coattend.models.network import EquivariantNetwork
from coattend.models.options import usual_options
from coattend.models.zoo import ENTRIES, ModelEntry

WEIGHTS = Path(__file__).parent / "weights"


def list_pretrained(data: str = "*") -> list[tuple[str, str]]:
    """What is shipped: pairs for ``create_model(name, pretrained=data)``."""
    return sorted((_name(path.stem), path.parent.name) for path in WEIGHTS.glob(f"{data}/*.safetensors"))


def load_pretrained(model: EquivariantNetwork, data: str) -> None:
    """Load the weights that the network got by training on a data set; with other classes, those of its stages."""
    from coattend.models.serialization import (  # which build networks by name, so they stand above
        load_model,
        read_model_file,
    )

    assert model.config is not None
    entry, options = ENTRIES[model.config["model"]], model.config["options"]
    usual = usual_options(entry)
    if model.num_classes == usual["num_classes"]:
        load_model(pretrained_file(canonical_name(entry, options), data), into=model)
        return
    file = pretrained_file(canonical_name(entry, {**options, "num_classes": usual["num_classes"]}), data)
    stages = {name: tensor for name, tensor in read_model_file(file)[1].items() if not name.startswith("head.")}
    model.load_state_dict({**model.state_dict(), **stages})


def canonical_name(entry: ModelEntry, options: Mapping[str, Any]) -> str:
    """The name with the options that differ from what it stands for, in alphabetical order."""
    usual = usual_options(entry)
    other = (
        f"{key}={_written(value)}"
        for key, value in sorted(options.items())
        if (get_group(value) != get_group(usual[key]) if key == "group" else value != usual.get(key))
    )
    return ":".join(filter(None, (entry.name, ",".join(other))))


def _written(value: Any) -> str:
    """An option's value as it is written behind a model's name."""
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    if isinstance(value, FiniteGroup):
        return value.name
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def pretrained_file(name: str, data: str) -> Path:
    """The file with the trained weights of a network, whose name has its options in alphabetical order."""
    shipped = list_pretrained()
    if (name, data) not in shipped:
        there = ", ".join(f"{model} on {data}" for model, data in shipped) or "none"
        raise ValueError(
            f"no weights of {name} trained on {data} come with the package; there are: {there}. Files of networks "
            "that you trained yourself are read by load_model."
        )
    return WEIGHTS / data / f"{file_stem(name)}.safetensors"


def file_stem(name: str) -> str:
    """A model's name as part of a file's name, from which it can be read again.

    >>> file_stem("a_p4cnn:attention=output,head=max")
    'a_p4cnn+attention=output+head=max'
    """
    return re.sub(r"[:,]", "+", name).replace("/", "_")


def _name(stem: str) -> str:
    return stem.replace("+", ":", 1).replace("+", ",")
