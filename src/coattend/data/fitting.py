"""Bringing images to one square size, in a way that commutes exactly with quarter turns and mirrors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coattend.data.dataset import DataError, Dataset

Fit = Literal["resize", "crop"]
PIXELS = 1 << 20  # taken to float64 at once, which bounds the memory that one enormous image needs
SAMPLES = 16  # along one axis at once, so that only the pixels near them are multiplied
ONE = 1 << 21  # what the weights of one sample add up to, about
LARGEST_BYTES = 1 << 37  # of one split; more fits into the memory of no ordinary computer
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
    if images[..., 0, 0].numel() * size**2 > LARGEST_BYTES:
        raise DataError(
            f"{len(images)} images of {size} x {size} pixels would take more than {LARGEST_BYTES // 2**30} GiB of "
            "memory; choose a smaller size."
        )
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
    reach = (size - 1) / 2 * step + 2 * max(step, 1.0)
    cut = max(0, math.floor((images.shape[-2] - 1) / 2 - reach))  # rows at both ends that no sample reaches
    images = images[..., cut : images.shape[-2] - cut, :]
    rows = max(1, PIXELS // max(1, images[..., 0, :].numel()))
    strips = [_along_rows(strip, size, step) for strip in images.split(rows, dim=-2)]
    across = strips[0][1]
    sums, down = _along_rows(torch.cat([strip for strip, _ in strips], dim=-2).mT, size, step)
    values = sums.mT / (down[:, None] * across)
    return (values + 0.5).floor().clamp(0, 255).byte()


def _along_rows(values: Tensor, size: int, step: float) -> tuple[Tensor, Tensor]:
    """Weighted sums (..., size) over the last axis, and the sums (size,) of the weights alone."""
    sums, totals = [], []
    for start in range(0, size, SAMPLES):
        samples: NDArray[Any] = (np.arange(start, min(start + SAMPLES, size)) - (size - 1) / 2) * step
        first, weights = _weights(values.shape[-1], samples, max(step, 1.0))
        sums.append(values[..., first : first + weights.shape[1]].double() @ weights.T)
        totals.append(weights.sum(1))
    return torch.cat(sums, dim=-1), torch.cat(totals)


def _weights(length: int, samples: NDArray[Any], wide: float) -> tuple[int, Tensor]:
    """The first pixel that counts, and the weights (samples, pixels) of cubic convolution over ``wide`` pixels.

    Samples and pixels are measured from the centre: mirrored places have the same weight, to the last bit.
    """
    centre = (length - 1) / 2
    first = max(0, math.floor(centre + samples[0] - 2 * wide))
    last = min(length - 1, math.ceil(centre + samples[-1] + 2 * wide))
    distance = np.abs(np.arange(first, last + 1) - centre - samples[:, None]) / wide
    near = (1.5 * distance - 2.5) * distance**2 + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    cubic = np.where(distance < 1, near, np.where(distance < 2, far, 0.0))
    return first, torch.from_numpy(np.rint(cubic / wide * ONE))
