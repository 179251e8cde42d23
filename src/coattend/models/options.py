"""The arguments that build a network: checked, compared, and as JSON in a file's header."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from coattend.groups import FiniteGroup, get_group
from coattend.models.zoo import ModelEntry

Number = (int, float, np.integer, np.floating)
MOST_CHANNELS = 2**20
MOST_BLOCKS = 200  # 1,202 layers
OF_TRAINING_ONLY = {"dropout", "input_dropout", "init_std", "norm_momentum", "diagonal"}


def usual_options(entry: ModelEntry) -> dict[str, Any]:
    """All options of a network with the values that its name stands for."""
    return {p.name: p.default for p in inspect.signature(entry.family).parameters.values()} | dict(entry.options)


def verified_options(entry: ModelEntry, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with numbers of the right kind, and ``attention="none"`` as None."""
    usual = usual_options(entry)
    return {key: _verified(key, value, usual.get(key)) for key, value in options.items()}


def _verified(key: str, value: Any, usual: Any) -> Any:
    if key == "attention":
        return None if value == "none" else value
    if key == "width" and isinstance(value, (tuple, list)):
        return tuple(_verified(key, v, 1) for v in value)
    if isinstance(usual, bool):
        if not isinstance(value, (bool, np.bool_)):
            raise ValueError(f"{key} must be true or false, got {value!r}.")
        return bool(value)
    if isinstance(usual, int) or key == "width":
        most = MOST_BLOCKS if key == "blocks" else MOST_CHANNELS
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 1 <= value <= most:
            raise ValueError(f"{key} must be a whole number from 1 to {most:,}, got {value!r}.")
        return int(value)
    if isinstance(usual, float):
        if isinstance(value, bool) or not isinstance(value, Number) or not math.isfinite(value):
            raise ValueError(f"{key} must be a finite number, got {value!r}.")
        return value.item() if isinstance(value, np.generic) else value
    return value


def differing_options(
    entry: ModelEntry, options: Mapping[str, Any], other: ModelEntry, other_options: Mapping[str, Any]
) -> list[str]:
    """In which options two networks of one family differ, as far as their outputs depend on them, in words."""
    mine, others = (_resolved(e, given) for e, given in ((entry, options), (other, other_options)))
    return [
        f"{key} is {_shown(mine.get(key))} instead of {_shown(others.get(key))}"
        for key in sorted({*mine, *others} - OF_TRAINING_ONLY)
        if mine.get(key) != others.get(key)
    ]


def _resolved(entry: ModelEntry, options: Mapping[str, Any]) -> dict[str, Any]:
    whole = {**usual_options(entry), **options}
    return {**whole, "group": get_group(whole["group"])}


def _shown(value: Any) -> str:
    return value.name if isinstance(value, FiniteGroup) else str(value)


def encoded_option(value: Any) -> Any:
    """A building argument for JSON: a group as its name where the name says all, else as its tables."""
    if not isinstance(value, FiniteGroup):
        return value
    if _is_named(value):
        return value.name
    planar = None if value.planar is None else value.planar.tolist()
    return {"product": value.product.tolist(), "planar": planar, "name": value.name}


def _is_named(group: FiniteGroup) -> bool:
    try:
        return get_group(group.name) == group
    except ValueError:
        return False


def decoded_options(text: str) -> dict[str, Any]:
    """The options of a file's header."""
    options = json.loads(text)
    if not isinstance(options, dict):
        raise ValueError(f"expected a JSON object of options, got {text[:40]!r}")
    for key, value in options.items():
        if isinstance(value, list):
            options[key] = tuple(value)
        elif key == "relative":
            options[key] = {layer: tuple(poses) for layer, poses in value.items()}
        elif isinstance(value, dict):
            options[key] = decoded_group(value)
    return options


def decoded_group(value: Any) -> FiniteGroup:
    """The group that :func:`encoded_option` encoded."""
    if isinstance(value, str):
        return get_group(value)
    return FiniteGroup(np.array(value["product"]), value["planar"], name=value["name"])
