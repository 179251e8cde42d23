"""Preprocessing: a chain of modules that turns pixels into the input of a network."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from coattend._words import did_you_mean
from coattend.data.preprocessing_steps import (
    Clip,
    ClipPercentile,
    NormalizeContrast,
    Standardize,
    StandardizeImageChannels,
    Step,
    Whiten,
)

CHUNK = 2000  # images transformed at once, in float64, at most
VALUES = 1 << 23  # in all of these


class Preprocessing(nn.Module):
    """Apply steps in order; constructed by :func:`make_preprocessing`.

    ``forward`` takes pixels (n, channels, height, width), bytes or floating-point values from 0 to 255, and returns
    float32. It computes in float64, and in another type after ``.to(dtype)``: float32 is enough for every step but
    ``zca``, which divides by small singular values.
    """

    _carrier: Tensor

    def __init__(self, names: Sequence[str], clip: float | None = None) -> None:
        super().__init__()
        self.names = tuple(names)
        self.clip = clip
        steps = [_step(name) for name in names] + ([] if clip is None else [Clip(clip)])
        self.steps: Sequence[Step] = nn.ModuleList(steps)  # type: ignore[assignment]
        self.register_buffer("_carrier", torch.empty(0, dtype=torch.float64), persistent=False)  # of the type of .to()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Preprocessing:
        """Convert as :class:`torch.nn.Module` does, but to float32 where a network becomes narrower than that."""

        def convert(tensor: Tensor) -> Tensor:
            converted = fn(tensor)
            narrow = converted.is_floating_point() and converted.dtype.itemsize < torch.float32.itemsize
            return tensor.to(converted.device, torch.float32) if narrow else converted

        super()._apply(convert, recurse)
        return self

    @property
    def commutes_with_rotation(self) -> bool:
        """Whether rotating by quarter turns or mirroring gives the same result before and after preprocessing."""
        return all(step.commutes_with_rotation for step in self.steps)

    @property
    def needs_float64(self) -> bool:
        """Whether float32 would change the result by more than rounding."""
        return any(step.needs_float64 for step in self.steps)

    @torch.no_grad()
    def fit(self, train_images: Tensor) -> Preprocessing:
        """Compute means, standard deviations and whitening from training images; return the module itself."""
        _check_images(train_images)
        if not len(train_images):
            raise ValueError("Preprocessing.fit expects at least one training image, got none.")
        for number, step in enumerate(self.steps):

            def chunks(before: Sequence[Step] = self.steps[:number]) -> Iterator[Tensor]:
                for chunk in train_images.split(_at_once(train_images)):
                    yield _through(before, chunk.double())

            step.fit(chunks)
        return self

    def check_fitted(self) -> None:
        """Raise unless every step has what it learns from the training images."""
        if not all(step.is_fitted for step in self.steps):
            raise ValueError("Preprocessing is not fitted; call fit(train_images) or load_state_dict(state) first.")

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the input of the network, float32 on the device of the pixels."""
        _check_images(pixels)
        self.check_fitted()
        dtype = self._carrier.dtype
        if torch.compiler.is_compiling() or len(pixels) <= _at_once(pixels):
            return _through(self.steps, pixels.to(dtype)).float()
        out = torch.empty(pixels.shape, dtype=torch.float32, device=pixels.device)
        at_once = _at_once(pixels)
        for start in range(0, len(pixels), at_once):
            out[start : start + at_once] = _through(self.steps, pixels[start : start + at_once].to(dtype))
        return out


STEPS: dict[str, Callable[[], Step]] = {
    "scalar": lambda: Standardize((0, 1, 2, 3)),
    "per-channel": lambda: Standardize((0, 2, 3)),
    "per-pixel": lambda: Standardize((0,)),
    "per-image-channel": StandardizeImageChannels,
    "gcn": NormalizeContrast,
    "zca": Whiten,
}
NUMBERED: dict[str, Callable[[float], Step]] = {  # followed by a number: gcn55, zca0.1, clip99
    "gcn": NormalizeContrast,
    "zca": Whiten,
    "clip": ClipPercentile,
}


def make_preprocessing(steps: Sequence[str], clip: float | None = None) -> Preprocessing:
    """Return the preprocessing with the named steps; ``clip`` limits its output to -clip..clip.

    ``scalar``, ``per-channel`` and ``per-pixel`` standardize with training statistics, ``per-image-channel`` and
    ``gcn`` each image with its own, ``gcn55`` gives each image the L2 norm 55; ``zca`` whitens as G-CNN's code does,
    ``zca0.1`` as pylearn2 does with that bias; ``clip99`` limits values to the 99th percentile of the training values.

    >>> make_preprocessing(["gcn", "zca"]).commutes_with_rotation
    False
    """
    check_names("make_preprocessing", steps)
    if clip is not None and (isinstance(clip, bool) or not isinstance(clip, (int, float)) or not 0 < clip < math.inf):
        raise ValueError(f"make_preprocessing expects clip to be a positive number or None, got {clip!r}.")
    return Preprocessing(steps, clip)


def _at_once(images: Tensor) -> int:
    return max(1, min(CHUNK, VALUES // max(1, images.shape[1:].numel())))


def _step(name: str) -> Step:
    if name in STEPS:
        return STEPS[name]()
    numbered = re.fullmatch(r"([a-z]+)(\d+(?:\.\d+)?)", name)
    if numbered and numbered[1] in NUMBERED:
        number = float(numbered[2])
        if number <= 0 or (numbered[1] == "clip" and number > 100):
            raise ValueError(f"the step {name!r} expects a positive number, for a percentile of at most 100.")
        return NUMBERED[numbered[1]](number)
    raise ValueError(unknown_step("preprocessing step", name, (*STEPS, "gcn55", "zca0.1", "clip99")))


def check_names(function: str, steps: object) -> None:
    """Raise unless the steps are a sequence of names."""
    if isinstance(steps, str) or not isinstance(steps, Sequence) or not all(isinstance(step, str) for step in steps):
        kind = "the string " if isinstance(steps, str) else ""
        raise ValueError(f"{function} expects a sequence of step names, got {kind}{steps!r}; put them in a list.")


def unknown_step(kind: str, name: str, known: Sequence[str]) -> str:
    """Return the message for a step that does not exist."""
    return f"unknown {kind} {name!r}{did_you_mean(name, known)}; the known ones are {', '.join(known)}."


def _through(steps: Sequence[Step], pixels: Tensor) -> Tensor:
    x = pixels / 255
    for step in steps:
        x = step(x)
    return x


def _check_images(images: Tensor) -> None:
    if (
        not isinstance(images, Tensor)
        or images.ndim != 4
        or not (images.dtype == torch.uint8 or images.is_floating_point())
    ):
        got = f"{images.dtype} {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise ValueError(
            f"Preprocessing expects images (n, channels, height, width) from 0 to 255, got {got}; pass Split.images."
        )
