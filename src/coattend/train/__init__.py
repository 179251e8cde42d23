"""Recipes, the training loop, run folders and comparisons; each name is loaded when it is used."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coattend.models.classifier import load_trained as load_trained
    from coattend.models.records import RunError as RunError
    from coattend.train.comparison import Comparison as Comparison
    from coattend.train.comparison import compare as compare
    from coattend.train.ledger import collect as collect
    from coattend.train.ledger import write_ledger as write_ledger
    from coattend.train.loop import train as train
    from coattend.train.optimizer import parameter_groups as parameter_groups
    from coattend.train.outcome import headline as headline
    from coattend.train.recipe import Recipe as Recipe
    from coattend.train.recipe import changed as changed
    from coattend.train.recipes import PAPER as PAPER
    from coattend.train.recipes import get_recipe as get_recipe
    from coattend.train.reproduction import Reproduction as Reproduction
    from coattend.train.reproduction import reproductions as reproductions
    from coattend.train.run_folder import RunFolder as RunFolder

_HOMES = {
    "Comparison": "coattend.train.comparison",
    "PAPER": "coattend.train.recipes",
    "Recipe": "coattend.train.recipe",
    "Reproduction": "coattend.train.reproduction",
    "RunError": "coattend.models.records",
    "RunFolder": "coattend.train.run_folder",
    "changed": "coattend.train.recipe",
    "collect": "coattend.train.ledger",
    "compare": "coattend.train.comparison",
    "get_recipe": "coattend.train.recipes",
    "headline": "coattend.train.outcome",
    "load_trained": "coattend.models.classifier",
    "parameter_groups": "coattend.train.optimizer",
    "reproductions": "coattend.train.reproduction",
    "train": "coattend.train.loop",
    "write_ledger": "coattend.train.ledger",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'coattend.train' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
