"""Restrict the group convolutions of any model to some relative poses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn

from coattend.nn.checks import check_model
from coattend.nn.pose_conv import PoseConv2d

Relative = Mapping[str, Iterable[int]] | Iterable[int] | int


def group_convolutions(model: nn.Module) -> dict[str, PoseConv2d]:
    """The layers that have relative poses to choose from, by name."""
    check_model("group_convolutions", model)
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, PoseConv2d) and layer.filter_on_group and layer.group.order > 1
    }


def restricted_poses(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """The relative poses of the group convolutions that do not have all of them."""
    return {name: layer.relative for name, layer in group_convolutions(model).items() if layer.is_restricted}


def restrict(model: nn.Module, relative: Relative) -> None:
    """Cut the group convolutions of a model down to some of their relative poses; what remains keeps its weights.

    ``relative`` gives the poses layer by layer, or once for all layers.

    >>> from coattend.nn import GroupConv2d
    >>> model = nn.Sequential(GroupConv2d(8, 8, 3, "p4"), GroupConv2d(8, 8, 3, "p4"))
    >>> restrict(model, {"1": (0, 2)})
    >>> model[1]
    GroupConv2d(C4, 8 -> 8, kernel=3, relative=(0, 2))
    """
    check_model("restrict", model)
    layers = group_convolutions(model)
    by_layer = relative if isinstance(relative, Mapping) else dict.fromkeys(layers, relative)
    unknown = [name for name in by_layer if name not in layers]
    if unknown:
        raise ValueError(
            f"no group convolution is called {', '.join(map(repr, unknown))}; those of this model are "
            f"{', '.join(layers) or 'none'}."
        )
    for name, poses in by_layer.items():
        layers[name].restrict(poses)  # type: ignore[arg-type]
