"""Draw the curves of the ledger's runs by one recipe: error and loss over the epochs.

    python tools/draw_ledger.py paper test_accuracy "test error in percent" docs/assets/paper_test

Reads ``docs/results/*.json``; runs whose curves were not kept are left out. The measure is one of ``train_loss``,
``valid_loss``, ``train_accuracy``, ``valid_accuracy``, ``test_accuracy``; accuracies are drawn as errors.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from coattend.models import list_models, model_entry
from coattend.report.curves import learning_figure
from coattend.report.style import save
from coattend.train.ledger import read_results

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def history(result: dict[str, Any]) -> list[dict[str, float]]:
    """The curves of one result as a line per epoch."""
    lines: list[dict[str, float]] = [{"epoch": epoch} for epoch in range(result["epochs"])]
    for measure, values in result["curves"].items():
        for line, value in zip(lines, values.split(), strict=True):
            if value != "-":
                line[measure] = float(value)
    return lines


def main() -> None:
    """One picture of all networks trained by the recipe, in the order of Table 1."""
    recipe, measure, label, target = sys.argv[1:]
    results = [r for r in read_results(RESULTS) if r["data"] == "rotated-mnist"]
    mine = [r for r in results if r["recipe"] == recipe and "curves" in r]
    mine.sort(key=lambda r: list_models().index(model_entry(r["model"]).name))
    histories: dict[str, list[list[dict[str, float]]]] = {}
    for result in mine:
        histories.setdefault(result["model"], []).append(history(result))
    for path in save(learning_figure(histories, measure, label), Path(target), (".png",)):
        print(path)  # noqa: T201


if __name__ == "__main__":
    main()
