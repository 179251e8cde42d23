"""Single image files, decoded by Pillow."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from torch import Tensor

from coattend.data.dataset import DataError
from coattend.data.storage import as_tensor

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"})
GREY = frozenset({"1", "L", "LA"})
COLOUR = frozenset({"RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr", "HSV", "LAB"})


def sorted_images(folder: Path) -> list[Path]:
    """Every image file in a folder and below, in the order of their names; none if there is no such folder."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())


def read_image(path: Path) -> Tensor:
    """One image as bytes (channels, height, width), upright as its camera meant it; 1 channel if it is grey, else 3."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise DataError(
            f"{path}: reading image files needs Pillow; run `pip install -e '.[images]'` in your clone of coattend, "
            "or save the images as an .npz with the arrays images and labels."
        ) from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as image:
                upright = ImageOps.exif_transpose(image)
                mode = upright.mode
                pixels = np.array(upright.convert("L" if mode in GREY else "RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise DataError(f"{path} cannot be read as an image ({error}); replace or remove it.") from error
    if mode not in GREY | COLOUR:
        raise DataError(
            f"{path}: expected 8 bits per channel, got Pillow's mode {mode!r}; how to scale brightness is yours to "
            "choose, so convert to 8 bits first."
        )
    return as_tensor(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))
