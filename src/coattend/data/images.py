"""Image files, read with Pillow."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coattend.data.dataset import DataError
from coattend.data.tiff import is_unusual_tiff, read_tiff, tiff_facts

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"})
# Pillow recognizes formats by content. Other formats are not needed, and EPS would start Ghostscript on the file.
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
PHOTOGRAPHS = "MPO"  # JPEGs of telephones; the first image is followed by a preview of it
GREY = frozenset({"1", "L", "LA"})
COLOUR = frozenset({"RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr", "HSV", "LAB"})
DEEP = "I;16"  # Pillow's mode of grey images with 16 bits
DEEPEST = 65535  # of 16 bits, read as 255
BACKGROUND = "white"
STRIP = 1 << 20  # pixels converted at once
LONGEST = 1 << 17  # pixels a side; Pillow needs memory for every row, however short
BITS_PER_SAMPLE = 258  # tag of TIFF


def list_images(folder: Path) -> list[Path]:
    """List the image files in a folder and its subfolders, sorted; none if there is no such folder."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())


class ImageFacts(NamedTuple):
    """What the header of an image file says; ``bits`` per channel are 8 or 16."""

    height: int
    width: int
    channels: int
    bits: int


def image_facts(path: Path) -> ImageFacts:
    """Return size, channels and bits, without decoding the pixels; raise if ``read_image`` would refuse the file."""
    if is_unusual_tiff(path):
        return ImageFacts(*tiff_facts(path))
    with _open_image(path) as image:
        channels = 1 if image.mode in GREY or image.mode == DEEP else 3
        return ImageFacts(image.height, image.width, channels, 16 if image.mode == DEEP else 8)


def image_size(path: Path) -> tuple[int, int]:
    """Return height and width as stored, without decoding the pixels; raise if ``read_image`` would refuse the file."""
    return image_facts(path)[:2]


def read_image(path: Path) -> Tensor:
    """Read an image (channels, height, width): bytes, or float32 from 0 to 255 if the file has 16 bits per channel.

    Grey images have 1 channel, others 3, and TIFFs as many as they store. The orientation in the EXIF data is applied;
    transparent pixels become white.
    """
    from PIL import ImageOps

    if is_unusual_tiff(path):
        return _as_values(read_tiff(path))
    with _open_image(path) as image:
        ImageOps.exif_transpose(image, in_place=True)
        pixels = np.asarray(image) if image.mode == DEEP else _pixels(image)
    return _as_values(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))


def _as_values(pixels: NDArray[Any]) -> Tensor:
    if pixels.dtype == np.uint8:
        return torch.from_numpy(np.ascontiguousarray(pixels))
    return torch.from_numpy(pixels.astype(np.float32) * np.float32(255 / DEEPEST))


@contextmanager
def _open_image(path: Path) -> Iterator[Image]:
    """Open an image with 8 bits per channel, or grey with 16; raise a DataError for any other file."""
    with opened_image(path) as image:
        _check_image(image, path)
        yield image


@contextmanager
def opened_image(path: Path) -> Iterator[Image]:
    """Open an image file with Pillow; raise a DataError for any other file, and where decoding it fails."""
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(
            f"{path}: reading image files needs Pillow; run `pip install -e '.[images]'` in your clone of coattend, "
            "or save the images as an .npz with the arrays images and labels."
        ) from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as image:
                yield image
    except DataError:
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise DataError(
            f"{path} has more than the {Image.MAX_IMAGE_PIXELS:,} pixels that are read at once; cut it into tiles."
        ) from error
    except Exception as error:  # a damaged file can make its decoder raise anything
        raise DataError(
            f"{path} cannot be read as an image ({_reason(error)}); replace it with a complete copy or remove it."
        ) from error


def _check_image(image: Image, path: Path) -> None:
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != PHOTOGRAPHS:
        raise DataError(f"{path} holds {frames} images, expected one; save each as a file.")
    if max(image.size) > LONGEST:
        raise DataError(f"{path} has a side of {max(image.size):,} pixels, more than {LONGEST:,}; cut it into tiles.")
    if image.mode == DEEP and image.format in ("PNG", "TIFF"):
        return
    bits = _bits_per_sample(image, path)
    if bits > 8 or image.mode not in GREY | COLOUR:
        got = f"{bits} bits" if bits > 8 else f"Pillow's mode {image.mode!r}"
        raise DataError(
            f"{path}: expected 8 bits per channel, got {got}; convert it to 8 bits with the scale of brightness that "
            "suits your data, or to a TIFF of 16 bits (read with tifffile, `pip install tifffile`)."
        )


def _bits_per_sample(image: Image, path: Path) -> int:
    """Return the bits in the file; Pillow opens 16-bit colours as 8-bit ones, which drops the lower byte."""
    if image.format == "PNG":
        with open(path, "rb") as file:
            return file.read(25)[24]
    if image.format == "TIFF":
        return int(max(image.tag_v2.get(BITS_PER_SAMPLE, (1,))))  # type: ignore[attr-defined]
    if image.format == "PPM":
        coding = image.tile[0].args  # type: ignore[attr-defined]
        return int(coding[1]).bit_length() if isinstance(coding, tuple) else 8  # the largest value, absent if it is 255
    return 8


def _pixels(image: Image) -> NDArray[np.uint8]:
    """Return bytes (height, width) or (height, width, 3), converted in strips to save memory."""
    width, height = image.size
    mode = "L" if image.mode in GREY else "RGB"
    pixels = np.empty((height, width) if mode == "L" else (height, width, 3), dtype=np.uint8)
    rows = max(1, STRIP // width)
    for top in range(0, height, rows):
        bottom = min(top + rows, height)
        pixels[top:bottom] = np.asarray(_on_background(image.crop((0, top, width, bottom))).convert(mode))
    return pixels


def _on_background(image: Image) -> Image:
    from PIL import Image

    if not image.has_transparency_data:
        return image
    background = Image.new("RGBA", image.size, BACKGROUND)
    return Image.alpha_composite(background, image.convert("RGBA"))


def _reason(error: Exception) -> str:
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return f"it is none of {', '.join(FORMATS)}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
