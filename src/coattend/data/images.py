"""Images: reading files with Pillow, and scaling or cropping to a square so that it commutes with quarter turns."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coattend.data.dataset import DataError, Dataset, Split
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

Fit = Literal["resize", "crop"]
PIXELS = 1 << 20  # converted to float64 at once, which limits the memory that one large image needs
SAMPLES = 16  # along one axis at once, so that only pixels near them are multiplied
ONE = 1 << 21  # approximate sum of the weights of one sample
ONE_OF_DEEP = 1 << 17  # of images with 16 bits, whose sums of products have to be below 2**53 too
LARGEST_BYTES = 1 << 37  # of one split
LARGEST_CHOSEN = 128  # pixels a side; larger sizes cost time, so the user has to choose them


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
