"""Networks by name."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from typing import Any, Literal, overload

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from coattend._words import did_you_mean
from coattend.models.network import EquivariantNetwork, FeatureBackbone
from coattend.models.options import usual_options, verified_options
from coattend.models.pretrained import load_pretrained
from coattend.models.restriction import restricted
from coattend.models.zoo import ENTRIES, ModelEntry


def list_models(pattern: str = "*") -> list[str]:
    """Names that match a pattern with wildcards, in the order of Table 1.

    >>> list_models("*p4m*")
    ['p4m_allcnn', 'a_p4m_allcnn', 'p4m_resnet44', 'a_p4m_resnet44']
    """
    if not isinstance(pattern, str):
        raise ValueError(f"list_models expects a pattern such as '*p4m*', got {pattern!r}.")
    return [name for name in ENTRIES if fnmatch.fnmatchcase(name, pattern)]


def model_entry(name: str) -> ModelEntry:
    """What the paper prints about a network, and how it is built here; options behind the name are ignored."""
    if not isinstance(name, str):
        raise ValueError(f"expected a model's name such as 'p4cnn', got {name!r}; `coattend models` lists all.")
    name = name.partition(":")[0]
    if name not in ENTRIES:
        raise ValueError(
            f"unknown model {name!r}{did_you_mean(name, ENTRIES)}; `coattend models` lists all {len(ENTRIES)}."
        )
    return ENTRIES[name]


@overload
def create_model(
    name: str, *, features_only: Literal[False] = ..., pretrained: str | bool | None = ..., **options: Any
) -> EquivariantNetwork: ...


@overload
def create_model(
    name: str, *, features_only: Literal[True], pretrained: str | bool | None = ..., **options: Any
) -> FeatureBackbone: ...


def create_model(
    name: str, *, features_only: bool = False, pretrained: str | bool | None = None, **options: Any
) -> EquivariantNetwork | FeatureBackbone:
    """Build a network of Table 1, or any variation of it, in training mode as torch.nn does; ``.eval()`` is for use.

    ``name`` may carry options, ``"a_p4cnn:attention=output,head=max"``; keyword options win. Each name builds by
    default the network whose parameter count the paper prints. With ``features_only`` the head is left out and the
    maps of every stage are returned. Every network takes ``relative``, the relative poses that its group convolutions
    are restricted to: a dictionary by layer, or ``relative=0-2`` for all (docs/restriction.md). ``pretrained`` names
    the data set on which the weights that come with the package were trained, True the one of Table 1;
    ``coattend.models.list_pretrained`` lists what there is. With another ``num_classes`` the stages are loaded and the
    head is new.

    >>> sum(p.numel() for p in create_model("a_p4cnn:attention=output").parameters())
    20160
    """
    entry = model_entry(name)
    model = build_network(entry.name, {**entry.options, **parse_options(name.partition(":")[2]), **options})
    if pretrained is not None and pretrained is not False:
        load_pretrained(model, entry.dataset if pretrained is True else pretrained)
    return FeatureBackbone(model) if features_only else model


def build_network(name: str, options: Mapping[str, Any]) -> EquivariantNetwork:
    """Build a network from the name of its entry and all options that differ from its family's."""
    entry = model_entry(name)
    known = [*usual_options(entry), "relative"]
    for option in options:
        if option not in known:
            hint = did_you_mean(option, known)
            raise ValueError(f"{entry.name} has no option {option!r}{hint}; its options are {', '.join(known)}.")
    verified = verified_options(entry, options)
    relative = verified.pop("relative", None)
    try:
        model = entry.family(**verified)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{entry.name} cannot be built so large ({reason}); choose a smaller width.") from error
    model.config = {"model": entry.name, "options": verified}
    return model if relative is None else restricted(model, relative)


class _WithoutDrawing(TorchFunctionMode):
    """Skip nn.init.normal_, which loads a compiler on the meta device; that takes more than a second."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        return kwargs["tensor"] if func is nn.init.normal_ else func(*args, **kwargs)


def network_skeleton(name: str, options: Mapping[str, Any]) -> EquivariantNetwork:
    """The network on the meta device: names and shapes of its tensors, without their memory."""
    with torch.device("meta"), _WithoutDrawing():
        return build_network(name, options)


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
