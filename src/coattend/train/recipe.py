"""How a network is trained: one frozen value that says everything, and how to change a field of it by name."""

from __future__ import annotations

import difflib
import math
import types
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from coattend.data.fitting import Fit

Optimizer = Literal["adam", "adamw", "sgd", "nesterov"]
Schedule = Literal["constant", "steps", "one-cycle"]
Precision = Literal["32-true", "64-true", "bf16-mixed", "16-mixed"]
Part = Literal["train", "train+valid"]


@dataclass(frozen=True)
class Recipe:
    """Everything about a training but the network and the seed.

    - size: pixels a side that all images are given; None keeps the data's, or chooses one where sizes differ
    - fit: "resize" scales the shorter side to size and cuts the longer one, "crop" cuts the centre without scaling
    - train_on: "train" keeps the validation split for choosing the epoch; "train+valid" uses it up, as [CW16] do
    - train_images, valid_images, test_images: only the first so many of a split; None for all
    - milestones: fractions of the epochs after which the learning rate is multiplied by gamma
    - attention_lr, bias_lr, head_lr: factors on the learning rate of attention vectors, biases, the last layer
    - weight_decay: on convolution weights; decay_attention, decay_norms_and_biases say what else it pulls at
    - test_every: epochs between looks at the test set while training, needed only for the optimistic figure; 0 for none
    - reestimate_norms: batch-norm statistics from one pass over the training set before each evaluation, as [CW16] do
    - explode: a loss beyond this stops the run as diverged
    - keep_poses: share of the relative poses that every group convolution ends with; they drop out in equal steps
      before the epochs at drop_poses_at, fractions of all epochs, and only epochs after the last step count as best
    """

    name: str
    data: str = "mini"
    size: int | None = None
    fit: Fit = "resize"
    train_on: Part = "train"
    train_images: int | None = None
    valid_images: int | None = None
    test_images: int | None = None
    preprocessing: tuple[str, ...] = ("scalar",)
    clip: float | None = None
    augmentation: tuple[str, ...] = ()
    optimizer: Optimizer = "adamw"
    lr: float = 1e-3
    attention_lr: float = 1.0
    bias_lr: float = 1.0
    head_lr: float = 1.0
    momentum: float = 0.9
    eps: float = 1e-8
    weight_decay: float = 0.0
    decay_attention: bool = False
    decay_norms_and_biases: bool = False
    schedule: Schedule = "constant"
    milestones: tuple[float, ...] = ()
    gamma: float = 0.1
    warmup: float = 0.2
    epochs: int = 10
    batch: int = 128
    label_smoothing: float = 0.0
    clip_gradients: float | None = None
    precision: Precision = "32-true"
    reestimate_norms: bool = False
    test_every: int = 0
    equivariance_every: int = 5
    explode: float = 100.0
    keep_poses: float = 1.0
    drop_poses_at: tuple[float, ...] = (0.2, 0.3, 0.4)

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            if get_origin(kind) is Literal and getattr(self, name) not in get_args(kind):
                raise ValueError(f"{name} must be one of {', '.join(get_args(kind))}, got {getattr(self, name)!r}.")
        for name in ("epochs", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.size is not None and self.size < 1:
            raise ValueError(f"size is a number of pixels, at least 1, got {self.size}.")
        for name in ("milestones", "drop_poses_at"):
            if any(not 0 <= fraction <= 1 for fraction in getattr(self, name)):
                raise ValueError(f"{name} are fractions of the epochs, from 0 to 1, got {getattr(self, name)}.")
        if not 0 < self.keep_poses <= 1:
            raise ValueError(
                f"keep_poses is a share of the relative poses, above 0 and up to 1, got {self.keep_poses}."
            )

    def learning_rate_factor(self, step: int, steps: int) -> float:
        """What the schedule multiplies the learning rate by in this step of so many."""
        progress = step / steps
        if self.schedule == "constant":
            return 1.0
        if self.schedule == "steps":
            return self.gamma ** sum(progress >= milestone for milestone in self.milestones)
        if progress < self.warmup:
            return 0.04 + 0.96 * progress / self.warmup
        return 0.5 * (1 + math.cos(math.pi * (progress - self.warmup) / (1 - self.warmup)))

    def is_due(self, epoch: int, every: int) -> bool:
        """Whether something that happens every so many epochs happens after this one; the last epoch is always due."""
        return every > 0 and ((epoch + 1) % every == 0 or epoch + 1 == self.epochs)

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self).items()}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Recipe:
        """The inverse of :meth:`to_dict`."""
        plain: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
        return Recipe(**plain)


def changed(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """The recipe with fields changed by ``field=value`` texts; its name tells what was changed.

    >>> changed(Recipe("quick"), ["epochs=3", "augmentation=rotate,flips"]).name
    'quick+epochs=3+augmentation=rotate,flips'
    """
    hints = get_type_hints(Recipe)
    known = [f.name for f in fields(Recipe) if f.name != "name"]
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise ValueError(f"--set expects field=value, got {setting!r}.")
        if key not in known:
            close = difflib.get_close_matches(key, known, n=3, cutoff=0.4)
            hint = f" (did you mean {' or '.join(close)}?)" if close else ""
            raise ValueError(f"a recipe has no field {key!r}{hint}; its fields are {', '.join(known)}.")
        recipe = replace(recipe, **{key: _parsed(key, text, hints[key]), "name": f"{recipe.name}+{setting}"})
    return recipe


def _parsed(key: str, text: str, kind: Any) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        if text.lower() == "none":
            return None
        (kind,) = (k for k in get_args(kind) if k is not type(None))
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        return tuple(_parsed(key, part, item) for part in text.split(",") if part and text.lower() != "none")
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{key} must be true or false, got {text!r}.")
        return text.lower() == "true"
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            wanted = "a whole number" if kind is int else "a number"
            raise ValueError(f"{key} must be {wanted}, got {text!r}.") from None
    return text
