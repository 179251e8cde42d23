"""Bringing images to one square size, in a way that commutes exactly with quarter turns and mirrors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from coattend.data.dataset import DataError, Dataset

Fit = Literal["resize", "crop"]
PIXELS = 1 << 20  # taken to float64 at once, which bounds the memory that one enormous image needs
ONE = 1 << 21  # what the weights of one sample add up to, about
LARGEST_CHOSEN = 128  # pixels a side; more is a choice that costs time, so it is left to the user


def fitted_dataset(dataset: Dataset, size: int, fit: Fit) -> Dataset:
    """The same data set with images of ``size`` pixels a side; the provenance says so."""
    train, valid, test = (replace(part, images=fitted(part.images, size, fit)) for part in dataset.splits().values())
    changed = "" if dataset.image_shape[1:] == (size, size) else f", {fit} to {size} x {size}"
    return replace(dataset, train=train, valid=valid, test=test, provenance=dataset.provenance + changed)


def fitted(images: Tensor, size: int, fit: Fit) -> Tensor:
    """Images (n, channels, height, width) of bytes as (n, channels, size, size), around the centre of each.

    "resize" scales the shorter side to ``size`` and cuts the longer one at both ends; "crop" cuts the centre out
    without scaling. Where an odd number of pixels is cut, the centre is half a pixel off the grid and values are
    interpolated there, so that an image turned or mirrored before gives exactly the result turned or mirrored after.
    """
    check_fit(size, fit)
    height, width = images.shape[-2:]
    if not height or not width:
        raise DataError(f"expected images with pixels, got {height} x {width}.")
    if fit == "crop" and min(height, width) < size:
        raise DataError(f"cannot crop {size} x {size} out of {height} x {width} pixels; use fit='resize'.")
    if (height, width) == (size, size):
        return images
    step = 1.0 if fit == "crop" else min(height, width) / size
    at_once = max(1, PIXELS // images[:1].numel()) if len(images) else 1
    return torch.cat([_resampled(chunk, size, step) for chunk in images.split(at_once)])


def check_fit(size: int, fit: Fit) -> None:
    """Refuse a size or a fit that does not exist."""
    if fit not in get_args(Fit):
        raise DataError(f"expected fit to be one of {', '.join(map(repr, get_args(Fit)))}, got {fit!r}.")
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise DataError(f"expected size to be a whole number of pixels, at least 1, got {size!r}.")


def chosen_size(shapes: Sequence[tuple[int, int]], fit: Fit) -> int:
    """A size for images of different shapes: the median of the shorter sides, for "crop" the smallest, at most 128.

    Sizes from 8 on are rounded down to a multiple of 4, so that two poolings of 2 x 2 divide them.
    """
    sides = sorted(min(shape) for shape in shapes)
    side = min(sides[0] if fit == "crop" else sides[(len(sides) - 1) // 2], LARGEST_CHOSEN)
    return side if side < 8 else side // 4 * 4


def recoloured(images: Tensor, channels: int) -> Tensor:
    """Images (..., channels, height, width) of bytes as grey, the mean of their colours, or grey ones as colour."""
    if images.shape[-3] == channels:
        return images
    if channels == 1:
        return images.float().mean(-3, keepdim=True).round().byte()
    return images.repeat_interleave(channels, dim=-3)


def _resampled(images: Tensor, size: int, step: float) -> Tensor:
    """Sample around the centre, ``step`` pixels apart, with weights of whole numbers.

    All sums are whole numbers below 2**53, so they are exact in float64 and do not depend on the order of the axes: the
    result commutes with turns, and is the same on every machine.
    """
    top, down = _weights(images.shape[-2], size, step)
    left, across = _weights(images.shape[-1], size, step)
    window = images[..., top : top + down.shape[1], left : left + across.shape[1]]
    rows = max(1, PIXELS // max(1, window[..., 0, :].numel()))
    narrow = torch.cat([strip.double() @ across.T for strip in window.split(rows, dim=-2)], dim=-2)
    values = (down @ narrow) / (down.sum(1)[:, None] * across.sum(1))
    return (values + 0.5).floor().clamp(0, 255).byte()


def _weights(length: int, size: int, step: float) -> tuple[int, Tensor]:
    """The first pixel that counts, and the weights (size, pixels) of cubic convolution, widened where it shrinks.

    Both coordinates are measured from the centre: mirrored places have the same weight, to the last bit.
    """
    wide = max(step, 1.0)
    reach = (size - 1) / 2 * step + 2 * wide
    first = max(0, int(np.floor((length - 1) / 2 - reach)))
    pixels = np.arange(first, length - first) - (length - 1) / 2
    samples = (np.arange(size) - (size - 1) / 2) * step
    distance = np.abs(pixels - samples[:, None]) / wide
    near = (1.5 * distance - 2.5) * distance**2 + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    cubic = np.where(distance < 1, near, np.where(distance < 2, far, 0.0))
    return first, torch.from_numpy(np.rint(cubic / wide * ONE))
