"""Single image files, decoded by Pillow."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coattend.data.dataset import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"})
# Pillow tells formats by content. Of the many it knows, EPS would start Ghostscript on the file.
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
PHOTOGRAPHS = "MPO"  # JPEGs of telephones; what follows the first image is a preview of it
GREY = frozenset({"1", "L", "LA"})
COLOUR = frozenset({"RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr", "HSV", "LAB"})
BACKGROUND = "white"
STRIP = 1 << 20  # pixels converted at once
LONGEST = 1 << 17  # pixels a side; Pillow needs memory for every row, however short
BITS_PER_SAMPLE = 258  # tag of TIFF


def sorted_images(folder: Path) -> list[Path]:
    """Every image file in a folder and below, in the order of their names; none if there is no such folder."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())


def image_size(path: Path) -> tuple[int, int]:
    """Height and width as stored, without decoding the pixels; raises if ``read_image`` would refuse the file."""
    with _opened(path) as image:
        return image.height, image.width


def read_image(path: Path) -> Tensor:
    """One image as bytes (channels, height, width), upright as its camera meant it; 1 channel if it is grey, else 3.

    Transparent pixels are shown on white.
    """
    from PIL import ImageOps

    with _opened(path) as image:
        ImageOps.exif_transpose(image, in_place=True)
        pixels = torch.from_numpy(_pixels(image))
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)


@contextmanager
def _opened(path: Path) -> Iterator[Image]:
    """An image whose pixels have 8 bits per channel and need no choice; anything else is a DataError."""
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
                _check(image, path)
                yield image
    except DataError:
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise DataError(
            f"{path} has more than the {Image.MAX_IMAGE_PIXELS:,} pixels that are read at once; cut it into tiles."
        ) from error
    except Exception as error:  # a damaged file can make its decoder raise anything
        raise DataError(
            f"{path} cannot be read as an image ({_reason(error)}); replace it by a whole copy or leave it out."
        ) from error


def _check(image: Image, path: Path) -> None:
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != PHOTOGRAPHS:
        raise DataError(f"{path} holds {frames} images and which one is meant cannot be told; save each as a file.")
    if max(image.size) > LONGEST:
        raise DataError(f"{path} has a side of {max(image.size):,} pixels, more than {LONGEST:,}; cut it into tiles.")
    bits = _bits_per_sample(image, path)
    if bits > 8 or image.mode not in GREY | COLOUR:
        got = f"{bits} bits" if bits > 8 else f"Pillow's mode {image.mode!r}"
        raise DataError(
            f"{path}: expected 8 bits per channel, got {got}; how to scale brightness is yours to choose, so convert "
            "to 8 bits first."
        )


def _bits_per_sample(image: Image, path: Path) -> int:
    """As the file has them; Pillow opens 16-bit colours as 8-bit ones, which cuts off the lower byte."""
    if image.format == "PNG":
        with open(path, "rb") as file:
            return file.read(25)[24]
    if image.format == "TIFF":
        return int(max(image.tag_v2.get(BITS_PER_SAMPLE, (1,))))  # type: ignore[attr-defined]
    if image.format == "PPM":
        coding = image.tile[0].args  # type: ignore[attr-defined]
        return int(coding[1]).bit_length() if isinstance(coding, tuple) else 8  # the largest value, unless it is 255
    return 8


def _pixels(image: Image) -> NDArray[np.uint8]:
    """Bytes (height, width) or (height, width, 3), converted strip by strip to keep the memory small."""
    width, height = image.size
    mode = "L" if image.mode in GREY else "RGB"
    pixels = np.empty((height, width) if mode == "L" else (height, width, 3), dtype=np.uint8)
    rows = max(1, STRIP // width)
    for top in range(0, height, rows):
        bottom = min(top + rows, height)
        pixels[top:bottom] = np.asarray(_shown(image.crop((0, top, width, bottom))).convert(mode))
    return pixels


def _shown(image: Image) -> Image:
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
