"""What makes two runs the same run: network, recipe, seed, and what the images contain, wherever they are."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from coattend.data import Dataset
from coattend.data.catalog import DATASETS
from coattend.train.recipe import Recipe

NAMES = ("name", "settings")  # fields that say what was changed, in words; the values themselves are compared


def is_named(data: str) -> bool:
    """Whether this is a data set with a name of its own rather than a path."""
    return data in DATASETS


def located(data: str) -> str:
    """Return a path to own images in one spelling, valid from every folder; names of data sets stay as they are."""
    path = Path(data).expanduser()
    return str(path.resolve()) if not is_named(data) and path.exists() else data


def data_digest(data: Dataset) -> str:
    """Digest classes, images and labels of all splits."""
    digest = hashlib.sha256(json.dumps(data.classes).encode())
    for split in data.splits().values():
        digest.update(json.dumps([*split.images.shape]).encode())
        for tensor in (split.images, split.labels):
            digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def differences(there: dict[str, Any], model: str, recipe: Recipe, seed: int, data: Dataset | None) -> list[str]:
    """In what a run differs from the one that run.json describes; without data, as far as names tell."""
    found = [key for key, value in (("model", model), ("seed", seed)) if there[key] != value]
    # A run begun before a field existed was made as if the field had its default.
    begun: dict[str, Any] = {**Recipe(recipe.name).to_dict(), **there["recipe"]}
    begun["data"] = located(str(begun["data"]))
    compared = {key: value for key, value in recipe.to_dict().items() if key not in NAMES}
    if data is not None and "data_digest" in there:
        del compared["data"]  # the content counts, not where it is
        found += ["the images"] if there["data_digest"] != data_digest(data) else []
    elif data is not None and there["provenance"] != data.provenance:
        found.append("provenance")
    return found + [f"recipe.{key}" for key, value in compared.items() if begun[key] != value]
