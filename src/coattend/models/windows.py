"""Large images in windows: one result per pixel, in bounded memory, without seams."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coattend.nn.observe import evaluating

WINDOW = 512
LARGEST_PERIOD = 64
LARGEST_REACH = 1024  # pixels; what reaches farther is taken for the whole image
SHIFT_TOLERANCE = 1e-3  # relative to the spread of the results; far above rounding, far below another alignment
STRIP = 16  # pixels, the height of the images on which reaches are measured, at least


@dataclass(frozen=True)
class Locality:
    """How far the result at a pixel depends on the image.

    - period: shifting the image by so many pixels shifts the results, and nothing else
    - reach: how many pixels at the border of a window, at a multiple of the period, what is beyond the border can
      change; None if it can change all
    """

    period: int
    reach: int | None


@dataclass(frozen=True)
class Windows:
    """Windows of an image along one axis, and the weight of each at every position; weights sum to 1."""

    starts: tuple[int, ...]
    length: int
    weights: Tensor  # windows, positions


def locality(model: nn.Module, in_channels: int) -> Locality:
    """Measure how far results depend on the image: one half of a strip is NaN, and the results say where that spreads.

    NaN spreads along every path, whatever the weights; norms have to be in evaluation mode, where they are local.
    """
    with evaluating(model):
        period = next((p for p in _powers(LARGEST_PERIOD) if _has_period(model, in_channels, p)), None)
        if period is None:
            return Locality(LARGEST_PERIOD, None)
        reaches = [_reach(model, in_channels, period, axis) for axis in (-1, -2)]
    return Locality(period, None if None in reaches else max(r for r in reaches if r is not None))


def apply_in_windows(model: nn.Module, image: Tensor, window: int = WINDOW, where: Locality | None = None) -> Tensor:
    """Apply a network that returns one result per pixel to a large image, window by window.

    Each window overlaps its neighbours so far that only results are used which the border of the window cannot have
    changed, and begins where the network's poolings fall on the same pixels as in the whole image: the result is that
    of the whole image at once, up to rounding, in the memory of one window. Where windows cannot overlap so far, and
    for networks whose results depend on the whole image (norms over positions, gates), neighbours are blended linearly
    over a quarter of the window instead. Images whose height or width the network does not take are extended by
    reflection, and the results cropped.

    Args:
        model: image (1, channels, height, width) -> (1, results, height, width).
        image: (channels, height, width), as the model takes it.
        window: height and width of the windows in pixels, rounded up to what the network takes.
        where: the result of :func:`locality`, if it is at hand.

    Returns (results, height, width), on the device of the image.
    """
    if not isinstance(image, Tensor) or image.ndim != 3 or 0 in image.shape:
        got = tuple(image.shape) if isinstance(image, Tensor) else type(image).__name__
        raise ValueError(f"apply_in_windows expects an image (channels, height, width), got {got}.")
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise ValueError(f"window must be a whole number of pixels, at least 1, got {window!r}.")
    where = locality(model, len(image)) if where is None else where
    size = image.shape[-2:]
    padded = _extended(image, where.period)
    rows, columns = (windows(length, window, where) for length in padded.shape[-2:])
    total: Tensor | None = None
    with evaluating(model):
        for top, row_weights in zip(rows.starts, rows.weights, strict=True):
            for left, column_weights in zip(columns.starts, columns.weights, strict=True):
                across = slice(top, top + rows.length), slice(left, left + columns.length)
                part = _results(model, padded[:, across[0], across[1]])
                if total is None:
                    total = part.new_zeros(len(part), *padded.shape[-2:])
                weight = row_weights[across[0], None] * column_weights[None, across[1]]
                total[:, across[0], across[1]].add_(part.mul_(weight.to(part)))
    assert total is not None
    return total[:, : size[0], : size[1]]


def is_seamless(size: tuple[int, int], window: int, where: Locality) -> bool:
    """Return whether windows give the result of the whole image, up to rounding."""
    return max(size) <= _length(window, where) or _margin(window, where) is not None


def windows(length: int, window: int, where: Locality) -> Windows:
    """Return the windows of an axis of a given length, a multiple of the period."""
    side = min(_length(window, where), length)
    margin = _margin(window, where)
    overlap = 2 * _rounded(margin, where.period) if margin is not None else _rounded(side // 4, where.period)
    step = max(where.period, side - overlap)
    starts = [*range(0, length - side, step), length - side]
    weights = torch.zeros(len(starts), length, dtype=torch.float64)
    for number, start in enumerate(starts):
        first = start + (margin or 0) * (start > 0)
        last = start + side - (margin or 0) * (start + side < length)
        inside = torch.arange(first, last)
        ramp = torch.minimum(inside - first + 1, last - inside)  # neighbours are blended where both may be used
        weights[number, first:last] = ramp.clamp(max=max(1, overlap)).double()
        if start == 0:
            weights[number, : side // 2] = weights[number].max()
        if start + side == length:
            weights[number, length - side // 2 :] = weights[number].max()
    return Windows(tuple(starts), side, weights / weights.sum(dim=0))


def _length(window: int, where: Locality) -> int:
    return _rounded(window, where.period)


def _margin(window: int, where: Locality) -> int | None:
    """Return how many pixels at the border of a window are not used; None if too few would be left to use."""
    if where.reach is None or 2 * _rounded(where.reach, where.period) >= _length(window, where):
        return None
    return where.reach


def _rounded(pixels: int, period: int) -> int:
    return math.ceil(pixels / period) * period


def _powers(most: int) -> list[int]:
    return [2**n for n in range(most.bit_length())]


def _extended(image: Tensor, period: int) -> Tensor:
    """Return an image with reflected pixels at the bottom and on the right, so that the period divides its size."""
    missing = [-length % period for length in image.shape[-2:]]
    if not any(missing):
        return image
    index = [_reflected(length, length + more) for length, more in zip(image.shape[-2:], missing, strict=True)]
    return image[:, index[0].to(image.device)][:, :, index[1].to(image.device)]


def _reflected(length: int, longer: int) -> Tensor:
    """Return indices 0, 1, ..., length - 1, length - 2, ..., of any length."""
    positions = torch.arange(longer) % max(1, 2 * length - 2)
    return torch.minimum(positions, 2 * length - 2 - positions) if length > 1 else torch.zeros(longer, dtype=torch.long)


def _results(model: nn.Module, image: Tensor) -> Tensor:
    """Return one result per pixel of an image (channels, height, width), which may be overwritten."""
    results = model(image[None])
    if not isinstance(results, Tensor) or results.ndim != 4 or results.shape[-2:] != image.shape[-2:]:
        got = tuple(results.shape) if isinstance(results, Tensor) else type(results).__name__
        raise ValueError(
            f"windows need a network with one result per pixel, (batch, results, {image.shape[-2]}, "
            f"{image.shape[-1]}) for images of that size, got {got}; coat_unet is such a network."
        )
    return results[0].clone()


def _has_period(model: nn.Module, channels: int, period: int) -> bool:
    """Return whether the network takes odd multiples of the period, and shifts its results with the image."""
    side = _rounded(STRIP, period)
    length = (257 // period | 1) * period
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(channels, side, length + period, generator=generator) * 255
    try:
        first, second = (_results(model, _like(model, image[..., s : s + length])) for s in (0, period))
    except (ValueError, RuntimeError):  # it does not take the size, as maps of unequal sizes that are joined
        return False
    middle = length // 2
    difference = (first[..., middle] - second[..., middle - period]).abs().max()
    return bool(difference <= SHIFT_TOLERANCE * first.std())


def _reach(model: nn.Module, channels: int, period: int, axis: int) -> int | None:
    """Return how many pixels along an axis NaN spreads, to either side; None if to the end of a long strip."""
    side, half = _rounded(STRIP, period), _rounded(64, period)
    while half <= _rounded(LARGEST_REACH, period):
        reaches = []
        for unknown in (slice(None, half), slice(half, None)):
            strip = torch.zeros(channels, side, 2 * half)
            strip[..., unknown] = torch.nan
            image = strip if axis == -1 else strip.mT
            spread = _results(model, _like(model, image)).isnan().any(dim=0).any(dim=-2 if axis == -1 else -1)
            reaches.append(int(spread.sum()) - half)
        if max(reaches) < half:
            return max(reaches)
        half *= 2
    return None


def _like(model: nn.Module, image: Tensor) -> Tensor:
    parameter = next(model.parameters(), torch.empty(0))
    return image.to(device=parameter.device, dtype=parameter.dtype)
