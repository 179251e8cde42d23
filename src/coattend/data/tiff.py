"""TIFF files that Pillow does not read as they are: 16 bits per colour, any number of channels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coattend.data.streaming import DataError

MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # the last two of BigTIFF
COMMON_SAMPLES = (1, 3, 4)
MOST_CHANNELS = 64
LARGEST = 1 << 30  # bytes of one image


def is_unusual_tiff(path: Path) -> bool:
    """Whether a file is a TIFF for tifffile: more than 8 bits per channel, or other than 1, 3 or 4 channels.

    Without tifffile, no file is: Pillow then reports what it cannot read.
    """
    try:
        with open(path, "rb") as file:
            if file.read(4) not in MAGIC:
                return False
    except OSError:
        return False  # reported by whoever reads the file
    try:
        import tifffile
    except ImportError:
        return False
    try:
        with tifffile.TiffFile(path) as content:
            page: Any = content.pages[0]
            deep = page.bitspersample > 8 and page.samplesperpixel > 1
            channels = page.samplesperpixel not in COMMON_SAMPLES or content.series[0].axes in ("CYX", "YXC")
            return bool(deep or channels or len(content.pages) > 1)
    except Exception as error:  # a damaged file can make its decoder raise anything
        raise damaged_tiff(path, error) from error


def tiff_facts(path: Path) -> tuple[int, int, int, int]:
    """Return height, width, channels and bits."""
    with _opened(path) as series:
        empty = np.broadcast_to(np.zeros((), series.dtype), series.shape)
        channels, height, width = _channels_first(path, empty, series.axes).shape
        return height, width, channels, 8 * series.dtype.itemsize


def read_tiff(path: Path) -> NDArray[Any]:
    """Read uint8 or uint16 (channels, height, width)."""
    with _opened(path) as series:
        return _channels_first(path, series.asarray(), series.axes)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open the only image of a file, a series of tifffile; raise a DataError for any other file."""
    import tifffile

    try:
        with tifffile.TiffFile(path) as content:
            series = content.series[0]
            if len(content.series) > 1:
                raise DataError(f"{path} holds {len(content.series)} images, expected one; save each as a file.")
            if series.dtype not in (np.uint8, np.uint16):
                raise DataError(f"{path}: expected 8 or 16 bits per channel, got {series.dtype}; convert it.")
            if series.nbytes > LARGEST:
                raise DataError(f"{path} has {series.nbytes:,} bytes of pixels, at most {LARGEST:,} are read; tile it.")
            yield series
    except DataError:
        raise
    except Exception as error:  # a damaged file can make its decoder raise anything
        raise damaged_tiff(path, error) from error


def damaged_tiff(path: Path, error: Exception) -> DataError:
    """Return the error for a file that tifffile cannot read."""
    reason = str(error).partition("\n")[0] or type(error).__name__
    return DataError(f"{path} cannot be read as an image ({reason}); replace it with a complete copy or remove it.")


def _channels_first(path: Path, pixels: NDArray[Any], axes: str) -> NDArray[Any]:
    for axis in reversed(range(len(axes))):
        if pixels.shape[axis] == 1 and axes[axis] not in "YX":
            pixels, axes = pixels.squeeze(axis), axes[:axis] + axes[axis + 1 :]
    if axes == "YX":
        return pixels[None]
    if axes.replace("C", "S") not in ("SYX", "YXS"):
        count = int(np.prod([n for n, axis in zip(pixels.shape, axes, strict=True) if axis not in "YXS"]))
        raise DataError(
            f"{path} holds {count} images, expected one; save each as a file, or name its axis C, channels."
        )
    pixels = pixels if axes.endswith("YX") else pixels.transpose(2, 0, 1)
    if len(pixels) > MOST_CHANNELS:
        raise DataError(f"{path} has {len(pixels)} channels, at most {MOST_CHANNELS} are read; choose some of them.")
    return pixels
