"""Options of a network: after its name, verified, compared, and as JSON in the header of a file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from coattend.groups import FiniteGroup, GroupSequence, Rings, get_group
from coattend.nn.attention import ATTENTIONS

Options = Mapping[str, Any]

Number = (int, float, np.integer, np.floating)
MOST_CHANNELS = 2**20
MOST_BLOCKS = 200  # 1,202 layers


def parse_options(text: str) -> Options:
    """Return the options written after a model's name; numbers, true, false and none are recognised.

    >>> parse_options("attention=none,dropout=0.3,width=11-23-45")
    {'attention': None, 'dropout': 0.3, 'width': (11, 23, 45)}
    """
    options = {}
    for part in filter(None, text.split(",")):
        key, equals, value = (s.strip() for s in part.partition("="))
        if not equals or not key or not value:
            raise ValueError(f"expected option=value after the model's name, got {part!r} in {text!r}.")
        options[key] = _parse_value(value)
    return options


def _parse_value(value: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if value.lower() in words:
        return words[value.lower()]
    if re.fullmatch(r"\d+(-\d+)+", value):
        return tuple(int(v) for v in value.split("-"))
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def write_options(options: Options) -> str:
    """Return options as they are written after a model's name, the inverse of :func:`parse_options`.

    Relative poses that are chosen layer by layer have no such form: they become ``relative=by-layer``.

    >>> write_options({"attention": None, "dropout": 0.3, "width": (11, 23, 45)})
    'attention=none,dropout=0.3,width=11-23-45'
    """
    return ",".join(f"{key}={_write_value(value)}" for key, value in options.items())


def _write_value(value: object) -> str:
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    if isinstance(value, FiniteGroup):
        return value.name
    if isinstance(value, Mapping):
        return "by-layer"
    if isinstance(value, type):
        return value.__name__
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def verified_options(options: Options, defaults: Options) -> Options:
    """Return the options with values of the types of the defaults, and attention as a name wherever it has one."""
    return {key: _verified(key, value, defaults.get(key)) for key, value in options.items()}


def _verified(key: str, value: Any, default: Any) -> Any:
    if key == "attention":
        return None if value == "none" else _registered_name(value)
    if key == "filters":
        return _filters(value)
    if key == "width" and isinstance(value, (tuple, list)):
        return tuple(_verified(key, v, 1) for v in value)
    if isinstance(default, bool):
        if not isinstance(value, (bool, np.bool_)):
            raise ValueError(f"{key} must be true or false, got {value!r}.")
        return bool(value)
    if isinstance(default, int) or key == "width":
        most = MOST_BLOCKS if key == "blocks" else MOST_CHANNELS
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 1 <= value <= most:
            raise ValueError(f"{key} must be a whole number from 1 to {most:,}, got {value!r}.")
        return int(value)
    if isinstance(default, float) or (key == "init_std" and not isinstance(value, str)):
        if isinstance(value, str) and key == "init_std":
            return value  # one of the words that Blocks knows
        if isinstance(value, bool) or not isinstance(value, Number) or not math.isfinite(value):
            raise ValueError(f"{key} must be a finite number, got {value!r}.")
        return value.item() if isinstance(value, np.generic) else value
    return value


def _filters(value: Any) -> Any:
    """Return rings from their orders, as text or as numbers after a model's name, everything else as it is."""
    if isinstance(value, (tuple, int)) and not isinstance(value, bool):
        return Rings(value if isinstance(value, tuple) else (value,))
    return Rings.parse(value) if isinstance(value, str) and value[:1].isdigit() else value


def _registered_name(attention: Any) -> Any:
    """Return a class of attention by the name under which it is registered, everything else as it is."""
    if not isinstance(attention, type):
        return attention
    return next((name for name, form in ATTENTIONS.items() if form is attention), attention)


def differing_options(options: Options, others: Options) -> Options:
    """Return the options that differ from others, in alphabetical order; groups count as equal by their tables."""
    return {key: value for key, value in sorted(options.items()) if not _equal(key, value, others.get(key))}


def _equal(key: str, value: object, other: object) -> bool:
    if key == "group" and isinstance(other, (str, FiniteGroup, GroupSequence)):
        return GroupSequence.of(value) == GroupSequence.of(other)  # type: ignore[arg-type]
    return value == other


def encoded_option(value: Any) -> Any:
    """Return an option for JSON: a group as its name where the name says all, else as its tables."""
    if isinstance(value, type):
        raise ValueError(
            f"a file cannot hold the class {value.__name__}; register it with coattend.register_attention, so that the "
            "file holds its name."
        )
    if isinstance(value, (Rings, GroupSequence)):
        return str(value)
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


def decoded_options(text: str) -> Options:
    """Return the options of a file's header."""
    options = json.loads(text)
    if not isinstance(options, dict):
        raise ValueError(f"expected a JSON object of options, got {text[:40]!r}")
    for key, value in options.items():
        if key == "filters":
            options[key] = _filters(value)
        elif isinstance(value, list):
            options[key] = tuple(value)
        elif key == "relative":
            options[key] = {layer: tuple(poses) for layer, poses in value.items()}
        elif isinstance(value, dict):
            options[key] = decoded_group(value)
    return options


def decoded_group(value: Any) -> FiniteGroup:
    """Return the group that :func:`encoded_option` encoded."""
    if isinstance(value, str):
        return get_group(value)
    return FiniteGroup(np.array(value["product"]), value["planar"], name=value["name"])
