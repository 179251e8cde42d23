"""Preprocessing as a list of named steps, fitted on the training part and applied to every split."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from coattend.data.catalog import check_names, unknown
from coattend.data.preprocessing_steps import (
    Clip,
    ClipPercentile,
    ContrastNormalise,
    Standardise,
    StandardiseImageChannels,
    Step,
    Whiten,
)

CHUNK = 2000  # images transformed at once, in float64

STEPS: dict[str, Callable[[], Step]] = {
    "scalar": lambda: Standardise((0, 1, 2, 3)),
    "per-channel": lambda: Standardise((0, 2, 3)),
    "per-pixel": lambda: Standardise((0,)),
    "per-image-channel": StandardiseImageChannels,
    "gcn": ContrastNormalise,
    "zca": Whiten,
}
NUMBERED: dict[str, Callable[[float], Step]] = {  # written with a number behind: gcn55, zca0.1, clip99
    "gcn": ContrastNormalise,
    "zca": Whiten,
    "clip": ClipPercentile,
}


class Preprocessing:
    """Steps in order; made by ``make_preprocessing``."""

    def __init__(self, names: tuple[str, ...], steps: Sequence[Step]) -> None:
        self.names = names
        self.steps = tuple(steps)
        self._fitted = not any(step.learnt for step in steps)

    @property
    def commutes_with_rotation(self) -> bool:
        """Whether turning an image by quarter turns, or mirroring it, before or after makes no difference."""
        return all(step.commutes_with_rotation for step in self.steps)

    def fit(self, train_images: Tensor) -> Preprocessing:
        """Learn means, spreads and whitening from the training images (n, channels, height, width)."""
        _check_images(train_images)
        if not len(train_images):
            raise ValueError("Preprocessing.fit expects at least one training image, got none.")
        for place, step in enumerate(self.steps):
            before = self.steps[:place]

            def chunks(before: tuple[Step, ...] = before) -> Iterator[Tensor]:
                for chunk in train_images.split(CHUNK):
                    yield _through(before, chunk)

            step.fit(chunks)
        self._fitted = True
        return self

    def apply(self, images: Tensor) -> Tensor:
        """Images as float32. Bytes, or floating point numbers from 0 to 255 as augmentation leaves them."""
        _check_images(images)
        self._check_fitted("apply")
        out = torch.empty(images.shape, dtype=torch.float32, device=images.device)
        for chunk, place in zip(images.split(CHUNK), out.split(CHUNK), strict=True):
            if len(chunk):
                place.copy_(_through(self.steps, chunk))
        return out

    def state(self) -> dict[str, Tensor]:
        """What was learnt, by position and name of the step, for a checkpoint."""
        self._check_fitted("state")
        return {
            f"{place}.{self.names[place]}.{name}": step.state[name]
            for place, step in enumerate(self.steps)
            for name in step.learnt
        }

    def load_state(self, state: Mapping[str, Tensor]) -> Preprocessing:
        """Take up what an equal preprocessing has learnt."""
        expected = {
            f"{place}.{self.names[place]}.{name}": (step, name)
            for place, step in enumerate(self.steps)
            for name in step.learnt
        }
        if set(state) != set(expected):
            raise ValueError(
                f"Preprocessing of the steps {self.names} expects the state {sorted(expected)}, got {sorted(state)}; "
                "build it from the steps that the state was saved with."
            )
        for key, (step, name) in expected.items():
            step.state[name] = state[key].double()
        self._fitted = True
        return self

    def _check_fitted(self, wanted: str) -> None:
        if not self._fitted:
            raise ValueError(
                f"Preprocessing.{wanted} comes after fit(train_images) or load_state(state); call one first."
            )

    def __repr__(self) -> str:
        return f"Preprocessing({', '.join(self.names)})"


def make_preprocessing(steps: Sequence[str], clip: float | None = None) -> Preprocessing:
    """Preprocessing by the names of its steps; ``clip`` limits the result to -clip..clip.

    ``scalar``, ``per-channel`` and ``per-pixel`` standardise with training statistics, ``per-image-channel`` and
    ``gcn`` each image by itself, ``gcn55`` by its L2 norm to length 55; ``zca`` whitens as G-CNN's code does,
    ``zca0.1`` as pylearn2 does with that bias; ``clip99`` limits values to the 99th percentile of the training values.

    >>> make_preprocessing(["gcn", "zca"]).commutes_with_rotation
    False
    """
    check_names("make_preprocessing", steps)
    names, made = tuple(steps), [_made(name) for name in steps]
    if clip is not None:
        if isinstance(clip, bool) or not isinstance(clip, (int, float)) or not 0 < clip < math.inf:
            raise ValueError(f"make_preprocessing expects clip to be a positive number or None, got {clip!r}.")
        names, made = (*names, f"clip at {clip:g}"), [*made, Clip(clip)]
    return Preprocessing(names, made)


def _made(name: str) -> Step:
    if name in STEPS:
        return STEPS[name]()
    numbered = re.fullmatch(r"([a-z]+)(\d+(?:\.\d+)?)", name)
    if numbered and numbered[1] in NUMBERED:
        number = float(numbered[2])
        if number <= 0 or (numbered[1] == "clip" and number > 100):
            raise ValueError(f"the step {name!r} expects a positive number, for a percentile of at most 100.")
        return NUMBERED[numbered[1]](number)
    raise ValueError(unknown(name, (*STEPS, "gcn55", "zca0.1", "clip99"), "preprocessing step"))


def _through(steps: Sequence[Step], images: Tensor) -> Tensor:
    x = images.double() / 255
    for step in steps:
        x = step.apply(x)
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
