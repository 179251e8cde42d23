"""Whether what a file holds fits a network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from coattend.models.container import Stored
from coattend.models.options import differing_options
from coattend.models.registry import model_entry

FLOATING = ("F16", "BF16", "F32", "F64")


def require_same_function(path: Path, name: str, options: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Equal shapes do not make equal networks: a group may turn the other way, a head may take another mean."""
    entry, other = model_entry(name), model_entry(config["model"])
    if entry.family is not other.family:
        differing = [f"it is a {entry.family.__name__} and not a {other.family.__name__}"]
    else:
        differing = differing_options(entry, options, other, config["options"])
    if differing:
        raise ValueError(
            f"{path} holds {name}, which does not fit the network: {_shortened(differing)}. Build the network with the "
            "same name and options."
        )


def differences(expected: Mapping[str, Tensor], found: Mapping[str, tuple[int, ...]]) -> str:
    """How names and shapes of tensors differ from those of a network; nothing if they do not."""
    wrong = [f"{name} is missing" for name in expected if name not in found]
    wrong += [f"{name} is not part of it" for name in found if name not in expected]
    wrong += [
        f"{name} is {found[name]} instead of {tuple(expected[name].shape)}"
        for name in expected
        if name in found and found[name] != tuple(expected[name].shape)
    ]
    return _shortened(wrong)


def foreign_types(expected: Mapping[str, Tensor], found: Mapping[str, Stored]) -> str:
    """Weights in types that hold none: a cast would take them silently."""
    return _shortened(
        f"{name} is stored as {found[name].dtype} instead of {' or '.join(allowed)}"
        for name, tensor in expected.items()
        if found[name].dtype not in (allowed := FLOATING if tensor.is_floating_point() else ("I64",))
    )


def _shortened(wrong: Iterable[str]) -> str:
    wrong = list(wrong)
    return "; ".join(wrong if len(wrong) <= 3 else [*wrong[:3], f"and {len(wrong) - 3} more"])
