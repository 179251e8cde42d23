"""Recipes: everything about a training except the network and the seed."""

from __future__ import annotations

import math
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from coattend._words import did_you_mean
from coattend.data.fitting import Fit
from coattend.data.reading import BadFiles, Keep

Optimizer = Literal["adam", "adamw", "sgd", "nesterov"]
Schedule = Literal["constant", "steps", "one-cycle"]
Precision = Literal["auto", "32-true", "64-true", "bf16-mixed", "16-mixed"]
Part = Literal["train", "train+valid"]
ClassWeights = Literal["none", "balanced"]
Sampling = Literal["uniform", "balanced"]

Range = tuple[str, Callable[[Any], bool]]  # what a value has to be, in words and as a test

_AT_LEAST_1: Range = ("must be at least 1", lambda v: v >= 1)
_FROM_0: Range = ("must be at least 0", lambda v: v >= 0)
_FACTOR: Range = ("must be from 0 to 1e9", lambda v: 0 <= v <= 1e9)  # products of some still fit into float32
_ABOVE_0: Range = ("must be above 0", lambda v: v > 0)
_BELOW_1: Range = ("must be from 0 to below 1", lambda v: 0 <= v < 1)
_FRACTIONS: Range = ("are fractions of the epochs, from 0 to 1", lambda v: 0 <= v <= 1)
RANGES: dict[str, Range] = {
    **dict.fromkeys(("epochs", "batch", "train_images", "valid_images", "test_images"), _AT_LEAST_1),
    "size": ("is a number of pixels, at least 1", lambda v: v >= 1),
    **dict.fromkeys(("test_every", "equivariance_every", "workers"), _FROM_0),
    **dict.fromkeys(("attention_lr", "bias_lr", "head_lr", "weight_decay"), _FACTOR),
    "lr": ("must be above 0 and at most 1e9", lambda v: 0 < v <= 1e9),
    **dict.fromkeys(("eps", "clip", "clip_gradients", "gamma", "explode"), _ABOVE_0),
    **dict.fromkeys(("momentum", "label_smoothing", "warmup", "averaging"), _BELOW_1),
    **dict.fromkeys(("milestones", "drop_poses_at"), _FRACTIONS),
    "keep_poses": ("is a share of the relative poses, above 0 and up to 1", lambda v: 0 < v <= 1),
}


@dataclass(frozen=True)
class Recipe:
    """Everything about a training except the network and the seed.

    - size: height and width of all images; None keeps those of the data, or chooses one where they differ
    - fit: "resize" scales the shorter side to size and crops the longer one, "crop" crops the centre without scaling
    - group: the column of a table whose values, such as patients, are never divided between splits
    - keep_images: own images in "memory" or on "disk", read when a batch needs them; "auto" decides by their number
    - workers: processes that read images from disk; the result of a training does not depend on it
    - bad_files: "stop" refuses images that cannot be read, "skip" leaves them out and lists them in skipped.csv
    - class_weights: "balanced" weighs the loss so that all classes count alike; sampling: "balanced" draws images so
      that all classes are equally frequent
    - start: a run folder or file whose weights the training starts from; layers of other shapes keep their random ones
    - train_on: "train" leaves the validation split for choosing the epoch; "train+valid" trains on both, as [CW16] do
    - train_images, valid_images, test_images: how many images of a split, from its start; None for all
    - milestones: fractions of the epochs after which the learning rate is multiplied by gamma
    - attention_lr, bias_lr, head_lr: factors on the learning rate of attention vectors, biases, the last layer
    - weight_decay: of convolution weights; decay_attention, decay_norms_and_biases extend it to other parameters
    - precision: of the training and of its tests; "auto" becomes bf16-mixed where the device has instructions for it,
      else 32-true, and the run records which
    - test_every: epochs between tests while training, needed only for the optimistic error; 0 for none
    - reestimate_norms: batch-norm statistics from one pass over the training set before each evaluation, as [CW16] do
    - averaging: the decay per step of an exponential mean of the weights, which is tested and saved in their place,
      with batch-norm statistics from one pass over the training set; 0 for none
    - explode: a loss above this stops the run as diverged
    - keep_poses: fraction of the relative poses that every group convolution ends with; the others are dropped in
      equal steps before the epochs at drop_poses_at, fractions of all epochs; the best epoch is after the last step
    - settings: the ``field=value`` texts that :func:`changed` applied to the recipe called ``name``
    """

    name: str
    data: str = "mini"
    size: int | None = None
    fit: Fit = "resize"
    group: str | None = None
    keep_images: Keep = "auto"
    workers: int = 2
    bad_files: BadFiles = "stop"
    class_weights: ClassWeights = "none"
    sampling: Sampling = "uniform"
    start: str | None = None
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
    averaging: float = 0.0
    test_every: int = 0
    equivariance_every: int = 5
    explode: float = 100.0
    keep_poses: float = 1.0
    drop_poses_at: tuple[float, ...] = (0.2, 0.3, 0.4)
    settings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            value = getattr(self, name)
            if get_origin(kind) is Literal and value not in get_args(kind):
                raise ValueError(f"{name} must be one of {', '.join(get_args(kind))}, got {value!r}.")
            if not _is_of(value, kind):
                raise ValueError(f"{name} must be {_in_words(kind)}, got {value!r}.")
            words, holds = RANGES.get(name, ("", None))
            values = value if isinstance(value, tuple) else (value,)
            if holds is not None and not all(holds(v) for v in values if v is not None):
                raise ValueError(f"{name} {words}, got {value}.")
        if self.optimizer == "nesterov" and self.momentum == 0:
            raise ValueError("momentum must be above 0 for the optimizer nesterov, got 0; or choose sgd.")

    @property
    def full_name(self) -> str:
        """The name with all settings, which run folders are called after."""
        return "+".join((self.name, *self.settings))

    def learning_rate_factor(self, step: int, steps: int) -> float:
        """Return the factor of the schedule on the learning rate in a step of so many."""
        progress = step / steps
        if self.schedule == "constant":
            return 1.0
        if self.schedule == "steps":
            return self.gamma ** sum(progress >= milestone for milestone in self.milestones)
        if progress < self.warmup:
            return 0.04 + 0.96 * progress / self.warmup
        return 0.5 * (1 + math.cos(math.pi * (progress - self.warmup) / (1 - self.warmup)))

    def is_due(self, epoch: int, every: int) -> bool:
        """Whether what happens every so many epochs happens after this one; after the last epoch it always does."""
        return every > 0 and ((epoch + 1) % every == 0 or epoch + 1 == self.epochs)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self).items()}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Recipe:
        """Return the inverse of :meth:`to_dict`; a missing field has its default."""
        plain: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
        unknown = sorted(set(plain) - {field.name for field in fields(Recipe)})
        if unknown:
            raise ValueError(f"a recipe has no field {', '.join(unknown)}; expected a recipe of this version or older.")
        name, settings = plain.get("name"), plain.get("settings", ())
        if isinstance(name, str) and _is_of(settings, tuple[str, ...]):
            plain["name"], plain["settings"] = split_name(name, settings)
        return Recipe(**{"name": None, **plain})


FIELDS = tuple(field.name for field in fields(Recipe) if field.name not in ("name", "settings"))


def changed(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """Return the recipe with fields changed by ``field=value`` texts, which it keeps in alphabetical order.

    >>> changed(Recipe("quick"), ["epochs=3", "augmentation=rotate,flips"]).full_name
    'quick+augmentation=rotate,flips+epochs=3'
    """
    hints = get_type_hints(Recipe)
    texts = {setting.partition("=")[0]: setting for setting in (*recipe.settings, *settings)}
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise ValueError(f"--set expects field=value, got {setting!r}.")
        if key not in FIELDS:
            hint = did_you_mean(key, FIELDS)
            raise ValueError(f"a recipe has no field {key!r}{hint}; its fields are {', '.join(FIELDS)}.")
        values[key] = _parsed(key, text, hints[key])
    return replace(recipe, **values, settings=tuple(texts[key] for key in sorted(texts)))


def split_name(name: str, settings: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return a recipe's own name and its settings in alphabetical order, from what a file has.

    Files of earlier versions have the settings in the name too, the oldest only there.
    """
    own, named = settings_of(name)
    return (own, tuple(sorted(named))) if not settings else (own, tuple(sorted(settings)))


def settings_of(name: str) -> tuple[str, tuple[str, ...]]:
    """Split a name as folders and files of earlier versions have it into the recipe's own name and the settings.

    A plus sign is part of a value unless a field follows it.

    >>> settings_of("house+epochs=3+train_on=train+valid")
    ('house', ('epochs=3', 'train_on=train+valid'))
    """
    own, *settings = re.split(rf"\+(?=(?:{'|'.join(FIELDS)})=)", name)
    return own, tuple(settings)


def _is_of(value: Any, kind: Any) -> bool:
    """Whether a value is of the declared type; numbers have to be finite."""
    if get_origin(kind) in (Union, types.UnionType):
        return any(_is_of(value, choice) for choice in get_args(kind))
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_is_of(item, get_args(kind)[0]) for item in value)
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, kind) and (kind is not int or not isinstance(value, bool))


def _in_words(kind: Any) -> str:
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_in_words(choice) for choice in get_args(kind))
    if get_origin(kind) is tuple:
        return f"a tuple, each item {_in_words(get_args(kind)[0])}"
    return {int: "a whole number", float: "a finite number", bool: "true or false", str: "a text"}.get(kind, "none")


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
