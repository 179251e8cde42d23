"""What every layer asks of its arguments and its input, and how it says so."""

from __future__ import annotations

import math
from numbers import Real

import torch
from torch import Tensor, nn

from coattend.functional import autocasts
from coattend.groups import FiniteGroup
from coattend.groups.axes import axis_names
from coattend.groups.integers import whole_number

Size = int | tuple[int, int]  # one for both axes; pairs must be equal
LARGEST = 2**31 - 1


def check_tensor(layer: nn.Module, x: Tensor, expected: str) -> None:
    """Require an ordinary dense tensor."""
    if not isinstance(x, Tensor):
        raise ValueError(
            f"{_name(layer)} expects {expected}, got {type(x).__name__}; pass a tensor (torch.as_tensor makes one)."
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
        problem = (
            f" with {x.shape[1]} channels; let the layer before it have as many out_channels as this one has "
            "channels coming in"
        )
    elif order is not None and x.shape[2] != order:
        problem = f" with a group axis of {x.shape[2]}; build both layers over the same group"
    else:
        problem = ", in which there is nothing; only the batch may be empty"
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
    if group.dimension not in (None, 2):
        raise ValueError(
            f"{_name(layer)} moves images, and {group.name} acts on {group.dimension} dimensions; pass a group with a "
            "planar action, such as cyclic(n) or dihedral(n)."
        )


def check_image(layer: nn.Module, x: Tensor, channels: int) -> None:
    """Require an image (batch, channels, height, width)."""
    check_tensor(layer, x, f"an image (batch, channels={channels}, height, width)")
    if x.ndim != 4 or x.shape[1] != channels:
        remedy = "this is a map on a group already: use GroupConv2d" if x.ndim == 5 else "check the input's axes"
        raise ValueError(
            f"{_name(layer)} expects an image (batch, channels={channels}, height, width), got {tuple(x.shape)}; "
            f"{remedy}."
        )


def check_device(layer: nn.Module, x: Tensor, parameter: Tensor) -> None:
    """Require the parameters' device: between the meta device and another one torch would compute with nothing."""
    if x.device != parameter.device:
        raise ValueError(
            f"{_name(layer)} has parameters on {parameter.device} and got an input on {x.device}; move one of them "
            "(module.to(device), or to_empty and load_state_dict for a module on meta)."
        )


def check_dtype(layer: nn.Module, x: Tensor, parameter: Tensor) -> None:
    """Require the parameters' device, and their dtype unless autocast takes care of it."""
    check_device(layer, x, parameter)
    if x.dtype != parameter.dtype and not autocasts(x):
        raise ValueError(
            f"{_name(layer)} has {parameter.dtype} parameters and got a {x.dtype} input; convert one of them "
            "(x.to(dtype) or module.to(dtype)) or run under torch.autocast."
        )


def check_integer(layer: nn.Module, name: str, value: object, minimum: int) -> int:
    """Require a whole number of any integer type."""
    number = whole_number(value)
    if number is None or not minimum <= number <= LARGEST:
        raise ValueError(
            f"{_name(layer)} expects {name} to be a whole number from {minimum} to {LARGEST}, got {value!r}."
        )
    return number


def check_size(layer: nn.Module, name: str, value: object, minimum: int) -> int:
    """Require a whole number for both axes, or an equal pair."""
    if isinstance(value, (tuple, list)) and len(value) == 2:
        if value[0] != value[1]:
            raise ValueError(
                f"{_name(layer)} expects the same {name} along height and width, got {value!r}: unequal ones do not "
                "commute with quarter turns."
            )
        value = value[0]
    return check_integer(layer, name, value, minimum)


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
    """Require one of a few words."""
    if value not in choices:
        raise ValueError(f"{_name(layer)} expects {name} to be one of {', '.join(map(repr, choices))}, got {value!r}.")


def check_model(function: str, model: nn.Module) -> None:
    """Require a module."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"{function} expects a model, a torch.nn.Module, got {type(model).__name__}.")


def _name(layer: nn.Module) -> str:
    return type(layer).__name__
