"""Bringing images to one square size, as an exactly equivariant network may need it."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.data.dataset import DataError, Dataset, Split

Fit = Literal["resize", "crop"]
CHUNK = 1000  # images resized at once


def fitted_dataset(dataset: Dataset, size: int, fit: Fit) -> Dataset:
    """The same data set with images of ``size`` pixels a side; the provenance says so."""
    train, valid, test = (Split(fitted(part.images, size, fit), part.labels) for part in dataset.splits().values())
    changed = "" if dataset.image_shape[1:] == (size, size) else f", {fit} to {size} x {size}"
    return replace(dataset, train=train, valid=valid, test=test, provenance=dataset.provenance + changed)


def fitted(images: Tensor, size: int, fit: Fit) -> Tensor:
    """Images (n, channels, height, width) of bytes as (n, channels, size, size).

    "resize" scales the shorter side to ``size`` and cuts the longer one at both ends; "crop" cuts the centre out of the
    pixels as they are, half a pixel off the centre where the difference is odd.
    """
    if fit not in get_args(Fit):
        raise DataError(f"expected fit to be one of {', '.join(map(repr, get_args(Fit)))}, got {fit!r}.")
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise DataError(f"expected size to be a whole number of pixels, at least 1, got {size!r}.")
    height, width = images.shape[-2:]
    if fit == "resize" and min(height, width) != size:
        scaled = round(height * size / min(height, width)), round(width * size / min(height, width))
        images = torch.cat([_resized(chunk, scaled) for chunk in images.split(CHUNK)])
        height, width = scaled
    if min(height, width) < size:
        raise DataError(f"cannot crop {size} x {size} out of {height} x {width} pixels; use fit='resize'.")
    top, left = (height - size) // 2, (width - size) // 2
    return images[..., top : top + size, left : left + size].contiguous()


def recoloured(image: Tensor, channels: int) -> Tensor:
    """An image (channels, height, width) of bytes as grey, the mean of its colours, or a grey one as colour."""
    if image.shape[0] == channels:
        return image
    return image.float().mean(0, keepdim=True).round().byte() if channels == 1 else image.expand(channels, -1, -1)


def _resized(images: Tensor, shape: tuple[int, int]) -> Tensor:
    if not len(images):  # interpolate refuses empty batches
        return images.new_zeros(0, images.shape[1], *shape)
    values = F.interpolate(images.float(), shape, mode="bicubic", antialias=True, align_corners=False)
    return values.round().clamp(0, 255).byte()
