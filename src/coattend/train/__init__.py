"""Recipes, the training loop, run folders and comparisons; each name is loaded when it is used."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coattend.models.classifier import load_trained as load_trained
    from coattend.models.records import RunError as RunError
    from coattend.train.comparison import Comparison as Comparison
    from coattend.train.comparison import compare as compare
    from coattend.train.loop import fit as fit
    from coattend.train.loop import train as train
    from coattend.train.optimizer import parameter_groups as parameter_groups
    from coattend.train.recipe import Recipe as Recipe
    from coattend.train.recipe import changed as changed
    from coattend.train.recipes import PAPER as PAPER
    from coattend.train.recipes import get_recipe as get_recipe
    from coattend.train.row import Row as Row
    from coattend.train.run import Result as Result
    from coattend.train.run import Run as Run
    from coattend.train.run_folder import RunFolder as RunFolder

_HOMES = {
    "Comparison": "coattend.train.comparison",
    "PAPER": "coattend.train.recipes",
    "Recipe": "coattend.train.recipe",
    "Result": "coattend.train.run",
    "Row": "coattend.train.row",
    "Run": "coattend.train.run",
    "RunError": "coattend.models.records",
    "RunFolder": "coattend.train.run_folder",
    "changed": "coattend.train.recipe",
    "compare": "coattend.train.comparison",
    "fit": "coattend.train.loop",
    "get_recipe": "coattend.train.recipes",
    "load_trained": "coattend.models.classifier",
    "parameter_groups": "coattend.train.optimizer",
    "train": "coattend.train.loop",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'coattend.train' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
