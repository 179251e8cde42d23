"""Templates: the architecture of a plain network with fewer channels, to be built over a group with new weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from coattend.conversion.refusal import ConversionError
from coattend.conversion.tracing import TRACE_ERRORS, is_torch_layer
from coattend.groups import FiniteGroup

Match = Literal["params", "cost"]


def narrowed(model: nn.Module, group: FiniteGroup, match: Match, images: Tensor) -> nn.Module:
    """Return a copy with new weights and so many channels that over the group it has the size of the plain network.

    A group convolution has order times as many weights as a plain one with its channels, and order squared times as
    many multiply-adds. All widths are multiples of a common unit, which is scaled, so that sums and concatenations fit.
    """
    factor = 1 / math.sqrt(group.order) if match == "params" else 1 / group.order
    copied = copy.deepcopy(model)
    _require_torch_parameters(copied)
    with torch.no_grad():
        classes = _width(model(images))
    channels = images.shape[1]
    widths = {n for layer in copied.modules() for n in _widths(layer)} - {channels, classes}
    unit = math.gcd(*widths) if widths else 1
    scaled = max(1, round(unit * factor))

    def width(n: int) -> int:
        return n if n in (channels, classes) and n not in widths else n // unit * scaled

    for name, layer in list(copied.named_modules()):
        if _widths(layer):
            copied.set_submodule(name, _resized(layer, width)) if name else None
    try:
        with torch.no_grad():
            resized = _width(copied.eval()(images))
    except TRACE_ERRORS as error:
        raise ConversionError(
            type(model).__name__,
            f"with other widths its forward fails ({str(error).splitlines()[0]})",
            "take widths from its layers instead of numbers in its code",
        ) from error
    assert resized == classes
    return copied


def _width(output: object) -> int:
    if not isinstance(output, Tensor) or output.ndim < 2:
        raise ConversionError("the output", "it is not one tensor (batch, channels, ...)", "return one tensor")
    return int(output.shape[1])


def _require_torch_parameters(model: nn.Module) -> None:
    for name, layer in model.named_modules():
        own = [key for key, _ in layer.named_parameters(recurse=False)]
        if own and not is_torch_layer(layer):
            raise ConversionError(
                f"{name or type(layer).__name__} ({type(layer).__name__})",
                f"how the widths of its own parameter {own[0]} follow from the layers is not known",
                'build it with the widths that you want and use mode="inflate" with relative=None',
            )


def _widths(layer: nn.Module) -> tuple[int, ...]:
    if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
        return layer.in_channels, layer.out_channels
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    if isinstance(layer, _BatchNorm):
        return (layer.num_features,)
    if isinstance(layer, nn.GroupNorm):
        return (layer.num_channels,)
    if isinstance(layer, nn.LayerNorm) and len(layer.normalized_shape) == 1:
        return (layer.normalized_shape[0],)
    return ()


def _resized(layer: nn.Module, width: Callable[[int], int]) -> nn.Module:
    new: nn.Module
    if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
        groups = layer.groups if layer.groups == 1 else width(layer.groups)
        kind: Any = nn.Conv2d if isinstance(layer, nn.Conv2d) else nn.ConvTranspose2d
        new = kind(
            width(layer.in_channels),
            width(layer.out_channels),
            layer.kernel_size,
            stride=layer.stride,
            padding=layer.padding,
            dilation=layer.dilation,
            groups=groups,
            bias=layer.bias is not None,
            padding_mode=layer.padding_mode,
            **({} if isinstance(layer, nn.Conv2d) else {"output_padding": layer.output_padding}),
        )
    elif isinstance(layer, nn.Linear):
        new = nn.Linear(width(layer.in_features), width(layer.out_features), layer.bias is not None)
    elif isinstance(layer, nn.GroupNorm):
        new = nn.GroupNorm(math.gcd(layer.num_groups, width(layer.num_channels)), width(layer.num_channels), layer.eps)
    elif isinstance(layer, nn.LayerNorm):
        new = type(layer)(width(layer.normalized_shape[0]), layer.eps)
    else:
        assert isinstance(layer, _BatchNorm)
        new = type(layer)(width(layer.num_features), layer.eps, layer.momentum)
    like = next(iter(layer.parameters()), None)
    return new if like is None else new.to(like.device, like.dtype)
