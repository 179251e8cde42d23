"""Runs as typed values: the description (run.json) and the result (result.json).

Every reader takes files of earlier versions too, and raises one sentence with the file's name where it is damaged.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from coattend.data import Dataset
from coattend.data.catalog import DATASETS
from coattend.data.rotated_mnist import current_name
from coattend.models.records import (
    COUNT,
    FINITE,
    NUMBER,
    TABLE,
    TEXT,
    TEXTS,
    WHOLE,
    RunError,
    checked,
    damaged,
    known_fields,
    or_null,
    read_json,
)
from coattend.train.history import Best, Epoch
from coattend.train.recipe import Recipe, split_name

DESCRIPTION = {
    "model": TEXT,
    "recipe": TABLE,
    "seed": WHOLE,
    "provenance": TEXT,
    "parameters": COUNT,
    "versions": TABLE,
}
RECIPE = {"name": TEXT, "data": TEXT, "epochs": COUNT}
RESULT = {
    "model": TEXT,
    "seed": WHOLE,
    "provenance": TEXT,
    "parameters": COUNT,
    "recipe": TEXT,
    "data": TEXT,
    "epochs": COUNT,
    "error": TABLE,
    "valid_epoch": or_null(COUNT),
    "valid_error": or_null(FINITE),
    "equivariance_error": or_null(NUMBER),
    "seconds_per_epoch": FINITE,
    "seconds": FINITE,
}
ERRORS = {"last": FINITE, "valid": or_null(FINITE), "test_optimistic": or_null(FINITE)}
# Fields of a recipe that do not change what is trained; two runs are compared by the values of the others.
WITHOUT_EFFECT = ("name", "settings", "workers", "bad_files")


@dataclass(frozen=True)
class Kind:
    """What the runs of one row of a table have in common: everything but the seed."""

    model: str
    recipe: str
    settings: tuple[str, ...]
    data: str
    provenance: str

    @property
    def recipe_name(self) -> str:
        """The recipe's name with its settings."""
        return "+".join((self.recipe, *self.settings))

    def command(self, seed: int) -> str:
        """Return the command that trains the run of this kind with a seed."""
        data = current_name(self.data, self.provenance)
        words = ["coattend", "train", self.model, "--data", data, "--recipe", self.recipe, "--seed", str(seed)]
        return shlex.join([*words, *(word for setting in self.settings for word in ("--set", setting))])


@dataclass(frozen=True)
class Run:
    """What a run is, written when it starts.

    - data_digest: digest of classes, images and labels; None in runs of versions that did not record it
    - arithmetic: what the last bits of a sum depend on: processor, threads, version of torch; None likewise
    """

    model: str
    recipe: Recipe
    seed: int
    provenance: str
    parameters: int
    versions: Mapping[str, str]
    data_digest: str | None = None
    arithmetic: str | None = None

    @property
    def kind(self) -> Kind:
        """Everything but the seed that tells it from other runs."""
        return Kind(self.model, self.recipe.name, self.recipe.settings, self.recipe.data, self.provenance)

    @property
    def command(self) -> str:
        """The command that trains this run."""
        return self.kind.command(self.seed)

    def differences(self, model: str, recipe: Recipe, seed: int, data: Dataset | None) -> list[str]:
        """Return what differs in another run; without ``data``, the images are compared by name only."""
        differing = [key for key, value in (("model", model), ("seed", seed)) if getattr(self, key) != value]
        own, compared = self.recipe.to_dict(), recipe.to_dict()
        own["data"] = absolute_path(current_name(self.recipe.data, self.provenance))
        names = [key for key in compared if key not in WITHOUT_EFFECT]
        if data is not None and self.data_digest is not None:
            names.remove("data")  # the content counts, not the path
            differing += ["the images"] if self.data_digest != digest_of(data) else []
        elif data is not None and self.provenance != data.provenance:
            differing.append("provenance")
        return differing + [f"recipe.{key}" for key in names if own[key] != compared[key]]

    def to_dict(self) -> dict[str, Any]:
        """Return the content of run.json."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**plain, "recipe": self.recipe.to_dict(), "versions": dict(self.versions)}

    @classmethod
    def read(cls, path: Path) -> Run:
        """Read run.json."""
        if not path.is_file():
            raise RunError(
                f"{path.parent} is not a run folder: it has no {path.name}; expected one written by `coattend train`."
            )
        values = checked(path, read_json(path), DESCRIPTION)
        checked(path, values["recipe"], RECIPE, "recipe.")
        checked(path, values, dict.fromkeys(("arithmetic", "data_digest"), or_null(TEXT)), optional=True)
        try:
            recipe = Recipe.from_dict(values["recipe"])  # a field that did not exist yet has its default
        except ValueError as error:
            raise damaged(path, f"recipe: {error}".rstrip(".")) from error
        return cls(**{**known_fields(cls, values), "recipe": recipe})


@dataclass(frozen=True)
class Errors:
    """Test errors in percent: after the last epoch, after the one chosen on validation, and the lowest on the test set.

    ``test_optimistic`` is chosen on the test images themselves.
    """

    last: float
    valid: float | None
    test_optimistic: float | None


@dataclass(frozen=True)
class Result:
    """What came out of a finished run.

    - recipe, settings: the recipe's own name, and the ``field=value`` texts that changed it
    - valid_epoch, valid_error: the epoch chosen on the validation images, and its error on them; None without any
    - was_finished: the run was finished before `train` was called; not written to files
    """

    model: str
    seed: int
    provenance: str
    parameters: int
    recipe: str
    settings: tuple[str, ...]
    data: str
    epochs: int
    error: Errors
    valid_epoch: int | None
    valid_error: float | None
    equivariance_error: float | None
    seconds_per_epoch: float
    seconds: float
    was_finished: bool = False

    @property
    def kind(self) -> Kind:
        """Everything but the seed that tells it from other runs."""
        return Kind(self.model, self.recipe, self.settings, self.data, self.provenance)

    @property
    def protocol(self) -> str:
        """How the epoch of the headline error was chosen: on validation if there was one, else the last."""
        return "last" if self.error.valid is None else "valid"

    @property
    def test_error(self) -> float:
        """The headline error in percent."""
        return self.error.last if self.error.valid is None else self.error.valid

    def to_dict(self) -> dict[str, Any]:
        """Return the content of result.json."""
        return {key: value for key, value in asdict(self).items() if key != "was_finished"}

    @classmethod
    def read(cls, path: Path) -> Result:
        """Read result.json."""
        return cls.from_dict(path, read_json(path))

    @classmethod
    def from_dict(cls, path: Path, values: Any) -> Result:
        """Check the inverse of :meth:`to_dict`; ``path`` is named where a field is wrong."""
        checked(path, values, RESULT)
        checked(path, values, {"settings": TEXTS}, optional=True)
        checked(path, values["error"], ERRORS, "error.")
        recipe, settings = split_name(values["recipe"], values.get("settings", ()))
        errors = Errors(**known_fields(Errors, values["error"]))
        known = {key: value for key, value in known_fields(cls, values).items() if key != "was_finished"}
        return cls(**{**known, "recipe": recipe, "settings": settings, "error": errors})


def summarize(
    run: Run, parameters: int, history: Sequence[Epoch], last: float, valid: float | None, best: Best | None
) -> Result:
    """Return the result of a run from its history and its test errors after the last and after the best epoch."""
    tested = [epoch.test_accuracy for epoch in history if epoch.test_accuracy is not None]
    equivariance = [e.equivariance_error for e in history if e.equivariance_error is not None]
    return Result(
        model=run.model,
        seed=run.seed,
        provenance=run.provenance,
        parameters=parameters,
        recipe=run.recipe.name,
        settings=run.recipe.settings,
        data=run.recipe.data,
        epochs=run.recipe.epochs,
        error=Errors(last, valid, 100 * (1 - max(tested)) if tested else None),
        valid_epoch=None if best is None else best.epoch,
        valid_error=None if best is None else 100 * (1 - best.accuracy),
        equivariance_error=equivariance[-1] if equivariance else None,
        seconds_per_epoch=statistics.median(epoch.seconds for epoch in history),
        seconds=sum(epoch.seconds for epoch in history),
    )


def is_named(data: str) -> bool:
    """Whether this is the name of a dataset instead of a path."""
    return data in DATASETS


def absolute_path(data: str) -> str:
    """Return a path to the user's images in one spelling; names of datasets stay as they are."""
    path = Path(data).expanduser()
    return str(path.resolve()) if not is_named(data) and path.exists() else data


def digest_of(data: Dataset) -> str:
    """Return the SHA-256 of classes, images and labels of all splits."""
    digest = hashlib.sha256(json.dumps(data.classes).encode())
    for split in data.splits().values():
        split.feed(digest)
    return digest.hexdigest()
