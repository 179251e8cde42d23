"""Networks by name."""

from __future__ import annotations

import difflib
import fnmatch
import inspect
import re
from collections.abc import Mapping
from typing import Any, Literal, overload

from coattend.models.network import EquivariantNetwork, FeatureBackbone
from coattend.models.pretrained import load_pretrained
from coattend.models.table1 import ENTRIES, ModelEntry


def list_models(pattern: str = "*") -> list[str]:
    """Names that match a pattern with wildcards, in the order of Table 1.

    >>> list_models("*p4m*")
    ['p4m_allcnn', 'a_p4m_allcnn', 'p4m_resnet44', 'a_p4m_resnet44']
    """
    return [name for name in ENTRIES if fnmatch.fnmatchcase(name, pattern)]


def model_entry(name: str) -> ModelEntry:
    """What the paper prints about a network, and how it is built here; options behind the name are ignored."""
    name = name.partition(":")[0]
    if name not in ENTRIES:
        raise ValueError(
            f"unknown model {name!r}{_nearest(name, ENTRIES)}; `coattend models` lists all {len(ENTRIES)}."
        )
    return ENTRIES[name]


@overload
def create_model(
    name: str, *, features_only: Literal[False] = ..., pretrained: str | None = ..., **options: Any
) -> EquivariantNetwork: ...


@overload
def create_model(
    name: str, *, features_only: Literal[True], pretrained: str | None = ..., **options: Any
) -> FeatureBackbone: ...


def create_model(
    name: str, *, features_only: bool = False, pretrained: str | None = None, **options: Any
) -> EquivariantNetwork | FeatureBackbone:
    """Build a network of Table 1, or any variation of it.

    ``name`` may carry options, ``"a_p4cnn:attention=output,head=max"``; keyword options win. Each name builds by
    default the network whose parameter count the paper prints. With ``features_only`` the head is left out and the
    maps of every stage are returned. Every network takes ``relative``, the relative poses that its group convolutions
    are restricted to: a dictionary by layer, or ``relative=0-2`` for all (docs/restriction.md). ``pretrained`` names
    the data set on which the weights that come with the package were trained; ``coattend.models.list_pretrained``
    lists what there is.

    >>> sum(p.numel() for p in create_model("a_p4cnn:attention=output").parameters())
    20160
    """
    entry = model_entry(name)
    merged = {**entry.options, **parse_options(name.partition(":")[2]), **options}
    known = [*inspect.signature(entry.family).parameters, "relative"]
    for option in merged:
        if option not in known:
            raise ValueError(
                f"{entry.name} has no option {option!r}{_nearest(option, known)}; its options are {', '.join(known)}."
            )
    relative = merged.pop("relative", None)
    model = entry.family(**merged)
    model.config = {"model": entry.name, "options": merged}
    if relative is not None:
        model.restrict(relative)
    if pretrained is not None:
        load_pretrained(model, _canonical_name(entry, model.config["options"]), pretrained)
    return FeatureBackbone(model) if features_only else model


def _canonical_name(entry: ModelEntry, options: Mapping[str, Any]) -> str:
    """The name with the options that differ from what it stands for, in alphabetical order."""
    usual = {p.name: p.default for p in inspect.signature(entry.family).parameters.values()} | dict(entry.options)
    other = (f"{key}={_written(value)}" for key, value in sorted(options.items()) if value != usual.get(key))
    return ":".join(filter(None, (entry.name, ",".join(other))))


def _written(value: Any) -> str:
    """An option's value as :func:`parse_options` reads it."""
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def parse_options(text: str) -> dict[str, Any]:
    """``"attention=output,width=8"`` as a dictionary; numbers, true, false and none are recognised.

    >>> parse_options("attention=none,dropout=0.3,width=11-23-45")
    {'attention': None, 'dropout': 0.3, 'width': (11, 23, 45)}
    """
    options: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = (s.strip() for s in part.partition("="))
        if not equals or not key or not value:
            raise ValueError(f"expected option=value behind the model's name, got {part!r} in {text!r}.")
        options[key] = _parsed(value)
    return options


def _parsed(value: str) -> Any:
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


def _nearest(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, list(known), n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(close)}?)" if close else ""
