"""Checks of the arguments and inputs of layers, with messages that name the class of the layer."""

from __future__ import annotations

import math
from numbers import Real

import torch
from torch import Tensor, nn

from coattend.functional.checks import check_planar_group
from coattend.functional.dispatch import autocasts
from coattend.functional.geometry import Size as Size
from coattend.functional.geometry import checked_integer, checked_size
from coattend.groups import FiniteGroup
from coattend.groups.axes import axis_names


class SizeError(ValueError):
    """Images of a size that a network does not take; it takes others."""


def check_tensor(layer: nn.Module, x: Tensor, expected: str) -> None:
    """Require an ordinary dense tensor."""
    if not isinstance(x, Tensor):
        raise ValueError(
            f"{_name(layer)} expects {expected}, got {type(x).__name__}; pass a tensor, such as torch.as_tensor(x)."
        )
    if x.layout != torch.strided or x.is_nested or x.is_quantized:
        kind = "nested" if x.is_nested else "quantised" if x.is_quantized else str(x.layout)
        raise ValueError(f"{_name(layer)} expects {expected} as a dense tensor, got a {kind} one; convert it first.")


def check_map(
    layer: nn.Module,
    x: Tensor,
    channels: int | None = None,
    order: int | None = None,
    dimension: int | None = None,
) -> None:
    """Require a map (batch, channels, group, height, width), with the spatial axes of a group's dimension."""
    axes = axis_names(dimension)
    rank = 3 + len(axes)
    check_tensor(layer, x, f"a map (batch, channels, group, {', '.join(axes)})")
    fits = x.ndim == rank and channels in (None, x.shape[1]) and order in (None, x.shape[2]) and 0 not in x.shape[1:]
    if fits:
        return
    expected = "(batch, {}, {}, {})".format(
        "channels" if channels is None else f"channels={channels}",
        "group" if order is None else f"group={order}",
        ", ".join(axes),
    )
    if x.ndim != rank:
        remedy = "lift images with LiftingConv2d first" if x.ndim == 4 and rank == 5 else "add the missing axes"
        problem = f"; {remedy}"
    elif channels is not None and x.shape[1] != channels:
        problem = f" with {x.shape[1]} channels; the layer before it needs out_channels={channels}"
    elif order is not None and x.shape[2] != order:
        problem = f" with a group axis of {x.shape[2]}; build both layers over the same group"
    else:
        problem = ", which is empty; only the batch may be empty"
    raise ValueError(f"{_name(layer)} expects a map {expected}, got {tuple(x.shape)}{problem}.")


def check_real_map(
    layer: nn.Module,
    x: Tensor,
    channels: int | None = None,
    order: int | None = None,
    dimension: int | None = None,
) -> None:
    """Require a map of floating-point numbers."""
    check_map(layer, x, channels, order, dimension)
    if not x.is_floating_point():
        raise ValueError(f"{_name(layer)} expects real numbers, got {x.dtype}; convert the map (x.float()).")


def check_planar(layer: nn.Module, group: FiniteGroup) -> None:
    """Require a group that acts on the plane, or one without an action, which is refused where its filters move."""
    check_planar_group(_name(layer), group)


def check_image(layer: nn.Module, x: Tensor, channels: int, dimension: int | None = None) -> None:
    """Require an image (batch, channels, height, width), with the spatial axes of a group's dimension."""
    axes = axis_names(dimension)
    expected = f"an image (batch, channels={channels}, {', '.join(axes)})"
    check_tensor(layer, x, expected)
    rank = 2 + len(axes)
    if x.ndim != rank or x.shape[1] != channels:
        remedy = "use GroupConv2d for a map on a group" if x.ndim == rank + 1 else "check the axes of the input"
        raise ValueError(f"{_name(layer)} expects {expected}, got {tuple(x.shape)}; {remedy}.")


def check_device(layer: nn.Module, x: Tensor, parameter: Tensor) -> None:
    """Require the device of the parameters; torch does not notice a mix of the meta device with another one."""
    if x.device != parameter.device:
        raise ValueError(
            f"{_name(layer)} has parameters on {parameter.device} and got an input on {x.device}; move one of them "
            "(module.to(device), or to_empty and load_state_dict for a module on meta)."
        )


def check_dtype(layer: nn.Module, x: Tensor, parameter: Tensor) -> None:
    """Require the device of the parameters, and their dtype unless autocast converts it."""
    check_device(layer, x, parameter)
    if x.dtype != parameter.dtype and not autocasts(x):
        raise ValueError(
            f"{_name(layer)} has {parameter.dtype} parameters and got a {x.dtype} input; convert one of them "
            "(x.to(dtype) or module.to(dtype)) or run under torch.autocast."
        )


def check_integer(layer: nn.Module, name: str, value: object, minimum: int) -> int:
    """Return a whole number of any integer type as an int."""
    return checked_integer(_name(layer), name, value, minimum)


def check_size(layer: nn.Module, name: str, value: object, minimum: int) -> int:
    """Return a whole number for both axes, given as one or as an equal pair."""
    return checked_size(_name(layer), name, value, minimum)


def check_number(layer: nn.Module, name: str, value: object, low: float, high: float = math.inf) -> float:
    """Require a finite number from low to high."""
    number = float(value) if not isinstance(value, bool) and isinstance(value, Real) else math.nan
    if not math.isfinite(number) or not low <= number <= high:
        bounds = (
            "" if math.isinf(low) else f" of at least {low:g}" if math.isinf(high) else f" from {low:g} to {high:g}"
        )
        raise ValueError(f"{_name(layer)} expects {name} to be a number{bounds}, got {value!r}.")
    return number


def check_choice(layer: nn.Module, name: str, value: object, choices: tuple[str, ...]) -> None:
    """Require one of the given words."""
    if value not in choices:
        raise ValueError(f"{_name(layer)} expects {name} to be one of {', '.join(map(repr, choices))}, got {value!r}.")


def check_model(function: str, model: nn.Module) -> None:
    """Require a module."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"{function} expects a model, a torch.nn.Module, got {type(model).__name__}.")


def _name(layer: nn.Module) -> str:
    return type(layer).__name__
