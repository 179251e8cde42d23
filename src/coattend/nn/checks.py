"""What every layer asks of its input, and how it says so."""

from __future__ import annotations

from torch import Tensor

from coattend.functional import autocasts


def check_map(layer: str, x: Tensor, channels: int | None = None, order: int | None = None) -> None:
    """Require a map (batch, channels, group, height, width)."""
    expected = "(batch, {}, {}, height, width)".format(
        "channels" if channels is None else f"channels={channels}",
        "group" if order is None else f"group={order}",
    )
    if x.ndim != 5:
        remedy = "lift images with LiftingConv2d first" if x.ndim == 4 else "add the missing axes"
        raise ValueError(f"{layer} expects a map {expected}, got {tuple(x.shape)}; {remedy}.")
    if channels is not None and x.shape[1] != channels:
        raise ValueError(
            f"{layer} expects a map {expected}, got {tuple(x.shape)} with {x.shape[1]} channels; "
            "let the layer before it have as many out_channels as this one has channels coming in."
        )
    if order is not None and x.shape[2] != order:
        raise ValueError(
            f"{layer} expects a map {expected}, got {tuple(x.shape)} with a group axis of {x.shape[2]}; "
            "build both layers over the same group."
        )


def check_image(layer: str, x: Tensor, channels: int) -> None:
    """Require an image (batch, channels, height, width)."""
    if x.ndim != 4 or x.shape[1] != channels:
        remedy = "this is a map on a group already: use GroupConv2d" if x.ndim == 5 else "check the input's axes"
        raise ValueError(
            f"{layer} expects an image (batch, channels={channels}, height, width), got {tuple(x.shape)}; {remedy}."
        )


def check_dtype(layer: str, x: Tensor, parameter: Tensor) -> None:
    """Require the parameters' dtype, unless autocast takes care of it."""
    if x.dtype != parameter.dtype and not autocasts(x):
        raise ValueError(
            f"{layer} has {parameter.dtype} parameters and got a {x.dtype} input; convert one of them "
            "(x.to(dtype) or module.to(dtype)) or run under torch.autocast."
        )


def check_integer(layer: str, name: str, value: object, minimum: int) -> int:
    """Require a single whole number."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ValueError(
            f"{layer} expects {name} to be one whole number of at least {minimum}, got {value!r}; "
            "a value per axis would not commute with quarter turns."
        )
    return value


def check_choice(layer: str, name: str, value: object, choices: tuple[str, ...]) -> None:
    """Require one of a few words."""
    if value not in choices:
        raise ValueError(f"{layer} expects {name} to be one of {', '.join(map(repr, choices))}, got {value!r}.")
