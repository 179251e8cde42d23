"""Images of one size: scaled or cropped to a square so that it commutes with quarter turns; grey and colour."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coattend.data.dataset import DataError, Dataset, Split
from coattend.data.images import DEEPEST

Fit = Literal["resize", "crop"]
PIXELS = 1 << 20  # converted to float64 at once, which limits the memory that one large image needs
SAMPLES = 16  # along one axis at once, so that only pixels near them are multiplied
ONE = 1 << 21  # approximate sum of the weights of one sample
ONE_OF_DEEP = 1 << 17  # of images with 16 bits, whose sums of products have to be below 2**53 too
LARGEST_BYTES = 1 << 37  # of one split
LARGEST_CHOSEN = 128  # pixels a side; larger sizes cost time, so the user has to choose them


def fit_dataset(dataset: Dataset, size: int, fit: Fit) -> Dataset:
    """Return the dataset with images of ``size`` pixels a side, which the provenance records."""
    if dataset.image_shape[1:] == (size, size):
        return dataset

    def fitting(part: Split) -> Split:
        if part.labels.ndim == 3:
            raise DataError(f"{dataset.name} has masks of {dataset.image_shape[1:]} pixels; leave out size.")
        return replace(part, images=fit_images(part.images, size, fit))

    train, valid, test = (fitting(part.in_memory()) for part in dataset.splits().values())
    changed = f", {fit} to {size} x {size}"
    return replace(dataset, train=train, valid=valid, test=test, provenance=dataset.provenance + changed)


def fit_images(images: Tensor, size: int, fit: Fit) -> Tensor:
    """Scale or crop images (n, channels, height, width) of bytes to (n, channels, size, size) around their centres.

    "resize" scales the shorter side to ``size`` and crops the longer one at both ends; "crop" crops the centre
    without scaling. Where an odd number of pixels is removed, the centre is half a pixel off the grid and values are
    interpolated there, so that rotating or mirroring before and after give exactly the same.
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
    return torch.cat([_resample(chunk, size, step) for chunk in images.split(at_once)])


def check_fit(size: int, fit: Fit) -> None:
    """Raise if a size or a fit is not valid."""
    if fit not in get_args(Fit):
        raise DataError(f"expected fit to be one of {', '.join(map(repr, get_args(Fit)))}, got {fit!r}.")
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise DataError(f"expected size to be a whole number of pixels, at least 1, got {size!r}.")


def common_size(shapes: Sequence[tuple[int, int]], fit: Fit) -> int:
    """Return a size for images of different shapes: the median shorter side, for "crop" the smallest, at most 128.

    Sizes from 8 on are rounded down to a multiple of 4, so that two poolings of 2 x 2 divide them.
    """
    sides = sorted(min(shape) for shape in shapes)
    side = min(sides[0] if fit == "crop" else sides[(len(sides) - 1) // 2], LARGEST_CHOSEN)
    return side if side < 8 else side // 4 * 4


def convert_channels(images: Tensor, channels: int) -> Tensor:
    """Convert images (..., channels, height, width) to grey, by the mean of the colours, or grey to colour."""
    present = images.shape[-3]
    if present == channels:
        return images
    if {present, channels} != {1, 3}:
        raise DataError(f"expected an image of {channels} channels, got {present}, which cannot be converted.")
    if channels == 3:
        return images.repeat_interleave(3, dim=-3)
    mean = images.float().mean(-3, keepdim=True)
    return mean.round().byte() if images.dtype == torch.uint8 else mean


def _resample(images: Tensor, size: int, step: float) -> Tensor:
    """Sample around the centre, ``step`` pixels apart, with integer weights.

    All sums are whole numbers below 2**53, so they are exact in float64 and do not depend on the order of the axes: the
    result commutes with quarter turns, and is the same on every machine. float32 images are whole numbers of 16 bits,
    scaled to 255.
    """
    if images.is_floating_point():
        whole = (images.double() * (DEEPEST / 255)).round()
        return (_resampled(whole, size, step, ONE_OF_DEEP, DEEPEST) * (255 / DEEPEST)).float()
    return _resampled(images, size, step, ONE, 255).byte()


def _resampled(images: Tensor, size: int, step: float, one: int, largest: int) -> Tensor:
    reach = (size - 1) / 2 * step + 2 * max(step, 1.0)
    cut = max(0, math.floor((images.shape[-2] - 1) / 2 - reach))  # rows at both ends that no sample reaches
    images = images[..., cut : images.shape[-2] - cut, :]
    rows = max(1, PIXELS // max(1, images[..., 0, :].numel()))
    strips = [_along_rows(strip, size, step, one) for strip in images.split(rows, dim=-2)]
    across = strips[0][1]
    sums, down = _along_rows(torch.cat([strip for strip, _ in strips], dim=-2).mT, size, step, one)
    values = sums.mT / (down[:, None] * across)
    return (values + 0.5).floor().clamp(0, largest)


def _along_rows(values: Tensor, size: int, step: float, one: int) -> tuple[Tensor, Tensor]:
    """Return weighted sums (..., size) over the last axis, and the sums (size,) of the weights alone."""
    sums, totals = [], []
    for start in range(0, size, SAMPLES):
        samples: NDArray[Any] = (np.arange(start, min(start + SAMPLES, size)) - (size - 1) / 2) * step
        first, weights = _weights(values.shape[-1], samples, max(step, 1.0), one)
        sums.append(values[..., first : first + weights.shape[1]].double() @ weights.T)
        totals.append(weights.sum(1))
    return torch.cat(sums, dim=-1), torch.cat(totals)


def _weights(length: int, samples: NDArray[Any], wide: float, one: int) -> tuple[int, Tensor]:
    """Return the first pixel with a weight, and weights (samples, pixels) of cubic convolution over ``wide`` pixels.

    Samples and pixels are measured from the centre: mirrored positions have exactly the same weight.
    """
    centre = (length - 1) / 2
    first = max(0, math.floor(centre + samples[0] - 2 * wide))
    last = min(length - 1, math.ceil(centre + samples[-1] + 2 * wide))
    distance = np.abs(np.arange(first, last + 1) - centre - samples[:, None]) / wide
    near = (1.5 * distance - 2.5) * distance**2 + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    cubic = np.where(distance < 1, near, np.where(distance < 2, far, 0.0))
    return first, torch.from_numpy(np.rint(cubic / wide * one))


def describe_fit(shapes: set[tuple[int, int]], size: int | None, fit: Fit) -> str:
    """Describe how images of these shapes were changed; empty if they were not."""
    if size is None or shapes == {(size, size)}:
        return ""
    low, high = min(min(shape) for shape in shapes), max(max(shape) for shape in shapes)
    sides = f"sides of {low} to {high} pixels" if low != high else f"{low} x {low} pixels"
    return f"{'scaled' if fit == 'resize' else 'cropped'} from {sides} to {size} x {size}"
