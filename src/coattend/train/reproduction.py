"""Rows of Table 1 made again: published figures, those of this library's own ledger, and those of another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coattend.models import model_entry
from coattend.models.paper import TABLE_1
from coattend.train.ledger import read_results
from coattend.train.outcome import headline
from coattend.train.recipe import changed
from coattend.train.recipes import get_recipe

OWN_RESULTS = Path(__file__).parents[3] / "docs" / "results"  # in a clone; elsewhere there are none


@dataclass(frozen=True)
class Reproduction:
    """Test errors of one network in percent: as published, in this library's own ledger, and in another."""

    model: str
    published: float
    shipped: tuple[float, ...]
    here: tuple[float, ...]


def reproductions(ledger: Path, rows: Sequence[str] = (), settings: Sequence[str] = ()) -> list[Reproduction]:
    """Read a ledger's runs by the paper's recipe, changed by ``settings``; without ``rows``, of all networks it has."""
    own, there = read_results(OWN_RESULTS), read_results(ledger / "results")
    found = []
    for model in rows or TABLE_1:
        recipe = changed(get_recipe("paper", model), settings).name
        shipped = tuple(headline(r)[1] for r in own if (r["model"], r["recipe"]) == (model, "paper"))
        here = tuple(headline(r)[1] for r in there if (r["model"], r["recipe"]) == (model, recipe))
        if rows or here:
            found.append(Reproduction(model, TABLE_1[model_entry(model).name].error, shipped, here))
    return found
