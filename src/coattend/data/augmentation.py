"""Augmentation: random changes to a batch of images, on its device, drawn from one generator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from coattend.data.preprocessing import check_names, unknown_step

Augmentation = Callable[[Tensor, Generator], Tensor]

ZOOM_PROBABILITY = 0.8
ELASTIC_POINTS = 4


def make_augmentation(steps: Sequence[str]) -> Augmentation:
    """Return a function of a batch (n, channels, height, width) and a generator that applies the named steps in order.

    ``quarter-turns`` and ``flips`` (left to right, half of the images) permute pixels and are exact. ``rotate`` rotates
    by a uniform angle, ``rotate=30`` by at most 30 degrees in each direction; the border is continued. ``shift=2``
    shifts by at most 2 pixels along each axis, in fractions, with mirrored borders; ``crop=4`` by whole pixels, padded
    with 4 zeros. ``zoom-crop=0.875`` crops a square of 0.875 to 1 of the image in 4 of 5 cases and scales it to the
    full size. ``elastic=1.5`` bends the image smoothly: a grid of 4 x 4 points moves by at most 1.5 pixels per axis.

    >>> augment = make_augmentation(["quarter-turns", "shift=2"])
    >>> augment(torch.zeros(8, 3, 32, 32), torch.Generator().manual_seed(0)).shape
    torch.Size([8, 3, 32, 32])
    """
    check_names("make_augmentation", steps)
    functions = [_function(step) for step in steps]

    def augment(x: Tensor, generator: Generator) -> Tensor:
        if not isinstance(x, Tensor) or x.ndim != 4:
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"augmentation expects a batch (n, channels, height, width), got {got}.")
        for function in functions:
            x = function(x, generator)
        return x

    return augment


def _function(step: str) -> Augmentation:
    name, _, text = step.partition("=")
    if name in EXACT and not text:
        return EXACT[name]
    if name not in MEASURED:
        raise ValueError(
            unknown_step("augmentation", step, (*EXACT, *(f"{known}={MEASURED[known][1]:g}" for known in MEASURED)))
        )
    function, default, largest = MEASURED[name]
    try:
        amount = float(text) if text or name != "rotate" else default
    except ValueError:
        amount = math.nan
    if not 0 < amount <= largest or (name == "crop" and not amount.is_integer()):
        kind = "a whole number" if name == "crop" else "a number"
        raise ValueError(
            f"{name} expects {kind} above 0 and up to {largest:g}, as in {name}={default:g}, got {step!r}."
        )
    return lambda x, generator: function(x, generator, amount)


def _quarter_turns(x: Tensor, generator: Generator) -> Tensor:
    height, width = x.shape[-2:]
    if height != width:
        raise ValueError(f"quarter-turns expects square images, got {height} x {width}; load them with size=.")
    index = torch.arange(height * width, device=x.device).view(height, width)
    return _permute(x, torch.stack([index.rot90(k) for k in range(4)]), generator)


def _flips(x: Tensor, generator: Generator) -> Tensor:
    height, width = x.shape[-2:]
    index = torch.arange(height * width, device=x.device).view(height, width)
    return _permute(x, torch.stack([index, index.flip(1)]), generator)


def _permute(x: Tensor, places: Tensor, generator: Generator) -> Tensor:
    """Permute the pixels of each image by a randomly chosen table of indices."""
    drawn = torch.randint(len(places), (len(x),), generator=generator, device=generator.device).to(x.device)
    chosen = places.flatten(1)[drawn].unsqueeze(1).expand(-1, x.shape[1], -1)
    return x.flatten(2).gather(2, chosen).view(x.shape)


def _rotate(x: Tensor, generator: Generator, degrees: float) -> Tensor:
    return rotate_batch(x, math.radians(degrees) * _symmetric(x, generator))


def rotate_batch(x: Tensor, angle: Tensor) -> Tensor:
    """Rotate each image counter-clockwise by its angle in radians, or all by one."""
    height, width = x.shape[-2:]
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    # Rows run downward, and affine_grid measures each axis in halves of its own length.
    theta = torch.stack([cos, -sin * height / width, zero, sin * width / height, cos, zero], dim=1).view(-1, 2, 3)
    return _sample(x, theta, "bicubic", "border")


def _shift(x: Tensor, generator: Generator, pixels: float) -> Tensor:
    height, width = x.shape[-2:]
    right = _symmetric(x, generator) * 2 * pixels / width
    down = _symmetric(x, generator) * 2 * pixels / height
    one, zero = torch.ones_like(right), torch.zeros_like(right)
    theta = torch.stack([one, zero, right, zero, one, down], dim=1).view(-1, 2, 3)
    return _sample(x, theta, "bicubic", "reflection")


def _crop(x: Tensor, generator: Generator, pixels: float) -> Tensor:
    margin = int(pixels)
    count, channels, height, width = x.shape
    drawn = torch.randint(2 * margin + 1, (2, count), generator=generator, device=generator.device).to(x.device)
    rows = drawn[0, :, None] + torch.arange(height, device=x.device)
    columns = drawn[1, :, None] + torch.arange(width, device=x.device)
    image = torch.arange(count, device=x.device)[:, None, None, None]
    channel = torch.arange(channels, device=x.device)[:, None, None]
    return F.pad(x, [margin] * 4)[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def _zoom_crop(x: Tensor, generator: Generator, smallest: float) -> Tensor:
    """Crop a square anywhere in the image and scale it to the full size, as [DT] does."""
    scale = 1 - (1 - smallest) * (_symmetric(x, generator) + 1) / 2
    right, down = ((1 - scale) * _symmetric(x, generator) for _ in range(2))
    zoomed = _symmetric(x, generator) < 2 * ZOOM_PROBABILITY - 1
    zero = torch.zeros_like(scale)
    theta = torch.stack([scale, zero, right, zero, scale, down], dim=1).view(-1, 2, 3)
    return torch.where(zoomed[:, None, None, None], _sample(x, theta, "bilinear", "border"), x)


def _elastic(x: Tensor, generator: Generator, pixels: float) -> Tensor:
    height, width = x.shape[-2:]
    points = pixels * _symmetric(x, generator, 2, ELASTIC_POINTS, ELASTIC_POINTS)
    moved = F.interpolate(points, (height, width), mode="bicubic", align_corners=True).permute(0, 2, 3, 1)
    still = torch.tensor([[1.0, 0, 0], [0, 1, 0]], device=x.device, dtype=x.dtype).expand(len(x), 2, 3)
    return _sample(x, still, "bicubic", "border", moved * 2 / moved.new_tensor([width, height]))


def _symmetric(x: Tensor, generator: Generator, *shape: int) -> Tensor:
    """Draw uniform numbers from -1 to 1, one or a tensor of them for each image."""
    drawn = torch.rand(len(x), *shape, generator=generator, device=generator.device, dtype=torch.float32)
    return (2 * drawn - 1).to(x.device, x.dtype)


def _sample(x: Tensor, theta: Tensor, mode: str, padding_mode: str, moved: Tensor | float = 0.0) -> Tensor:
    if not x.is_floating_point():
        raise ValueError(f"augmentation that interpolates expects floating-point images, got {x.dtype}; use x.float().")
    grid = F.affine_grid(theta, [theta.shape[0], *x.shape[1:]], align_corners=False) + moved
    grid = grid.expand(x.shape[0], -1, -1, -1)
    return F.grid_sample(x, grid, mode=mode, padding_mode=padding_mode, align_corners=False)


EXACT: dict[str, Augmentation] = {"quarter-turns": _quarter_turns, "flips": _flips}
MEASURED: dict[str, tuple[Callable[[Tensor, Generator, float], Tensor], float, float]] = {  # function, example, largest
    "rotate": (_rotate, 180, 180),
    "shift": (_shift, 2, math.inf),
    "crop": (_crop, 4, math.inf),
    "zoom-crop": (_zoom_crop, 0.875, 1),
    "elastic": (_elastic, 1.5, math.inf),
}
