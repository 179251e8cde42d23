"""Networks by name."""

from __future__ import annotations

from typing import Any, Literal, overload

from coattend.models.network import EquivariantNetwork, FeatureBackbone
from coattend.models.options import parse_options
from coattend.models.pretrained import load_pretrained
from coattend.models.registry import build_network, model_entry


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
    """Build a registered network, or any variation of it, in training mode as torch.nn does.

    ``name`` may carry options, ``"a_p4cnn:attention=output,head=max"``; keyword options take precedence. By default
    the names of Table 1 build the networks whose parameter counts the paper prints. With ``features_only`` the head is
    left out and the maps of every stage are returned. Every network takes ``relative``, the relative poses that its
    group convolutions are restricted to: a dictionary by layer, or ``relative=0-2`` for all (docs/restriction.md).
    ``pretrained=True`` loads the weights that are shipped for the network's own dataset, a string those for another;
    ``coattend.models.list_pretrained`` lists them. With another ``num_classes`` the stages are loaded and the head is
    new.

    >>> sum(p.numel() for p in create_model("a_p4cnn:attention=output").parameters())
    20160
    """
    entry = model_entry(name)
    model = build_network(entry, {**parse_options(name.partition(":")[2]), **options})
    if pretrained is not None and pretrained is not False:
        load_pretrained(model, entry.dataset if pretrained is True else pretrained)
    return FeatureBackbone(model) if features_only else model
