"""Image sizes at which the windows of a network cover every map evenly, so that it can be converted exactly."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from coattend.conversion.geometry import Window, conv_window, pool_window
from coattend.conversion.refusal import ConversionError
from coattend.conversion.tracing import TRACE_ERRORS
from coattend.equivariance.exactness import in_channels_of
from coattend.nn.observe import Call, recording

# Tried in this order where no size is given: large enough that maps keep several positions, small enough to be quick.
CANDIDATES = (64, 65, 96, 97, 48, 49, 32, 33, 28, 29, 128, 129, 224, 225, 256, 257)
BATCH = 3  # a number that is no usual size, so that a batch axis is not mistaken for another
REACH = 40  # pixels, in which exact sizes are looked for


def chosen_size(model: nn.Module, channels: int, like: Tensor) -> int:
    """Return an image size that the network takes, one at which all windows fit if there is one."""
    accepted = []
    for size in CANDIDATES:
        uneven = uneven_windows(model, torch.zeros(BATCH, channels, size, size, dtype=like.dtype, device=like.device))
        if uneven == []:
            return size
        if uneven is not None:
            accepted.append(size)
    if not accepted:
        raise ConversionError(
            type(model).__name__,
            f"it takes no images of {channels} channels and {min(CANDIDATES)} to {max(CANDIDATES)} pixels",
            "pass the size of its images, size=",
        )
    return accepted[0]


def uneven_windows(model: nn.Module, images: Tensor) -> list[tuple[str, Window]] | None:
    """Return the strided layers whose windows do not cover their maps evenly; None if the network fails on them."""
    windows: dict[type[nn.Module], Callable[[Any], Window | None]] = {
        nn.Conv2d: conv_window,
        nn.MaxPool2d: pool_window,
        nn.AvgPool2d: pool_window,
    }

    def uneven(call: Call) -> tuple[str, Window] | None:
        window = next(window(call.layer) for kind, window in windows.items() if isinstance(call.layer, kind))
        return None if window is None or window.fits(*call.inputs[0].shape[-2:]) else (call.name, window)

    with torch.no_grad(), recording(model, uneven, tuple(windows), before=True) as calls:
        try:
            model(images)
        except TRACE_ERRORS:
            return None
    return calls


def exact_sizes(model: nn.Module, channels: int, size: int) -> list[int]:
    """Return the nearest exact size below and above, as far as there are any within 40 pixels."""
    skeleton = copy.deepcopy(model).to("meta").eval()

    def is_exact(n: int) -> bool:
        return uneven_windows(skeleton, torch.empty(BATCH, channels, n, n, device="meta")) == []

    below = next((n for n in range(size - 1, max(size - REACH, 0), -1) if is_exact(n)), None)
    above = next((n for n in range(size + 1, size + REACH) if is_exact(n)), None)
    return [n for n in (below, above) if n is not None]


def channels_of(model: nn.Module) -> int:
    """Return the number of channels of the images that a network takes."""
    try:
        return in_channels_of(model)
    except ValueError as error:
        raise ConversionError(
            type(model).__name__,
            "it has no Conv2d, so that the channels of its images are not known",
            "pass an example of its images, example=",
        ) from error
