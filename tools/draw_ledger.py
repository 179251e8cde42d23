"""Draw the curves of the ledger's runs by one recipe: error or loss over the epochs.

    python tools/draw_ledger.py paper test_accuracy "test error in percent" docs/assets/paper_test

Reads ``results/runs.jsonl``; runs without the curve are left out. The measure is one of ``train_loss``,
``valid_loss``, ``train_accuracy``, ``valid_accuracy``, ``test_accuracy``; accuracies become errors.
"""

from __future__ import annotations

import sys
from pathlib import Path

from coattend.models import list_models, model_entry
from coattend.report.curves import learning_figure
from coattend.report.style import save
from coattend.train.record import read_records

RESULTS = Path(__file__).parents[1] / "results" / "runs.jsonl"


def main() -> None:
    """Draw one picture of all networks trained by the recipe, in the order of Table 1."""
    recipe, measure, label, target = sys.argv[1:]
    records = [r for r in read_records(RESULTS) if r.result.data == "rotated-mnist" and measure in r.curves]
    mine = [record for record in records if record.result.kind.recipe_name == recipe]
    mine.sort(key=lambda record: list_models().index(model_entry(record.result.model).name))
    several = len({record.result.provenance for record in mine}) > 1
    curves: dict[str, list[tuple[float | None, ...]]] = {}
    for record in mine:
        images = f", {record.result.provenance}" if several else ""
        curves.setdefault(f"{record.result.model}{images}", []).append(record.curves[measure])
    for path in save(learning_figure(curves, measure, label), Path(target), (".png",)):
        print(path)  # noqa: T201


if __name__ == "__main__":
    main()
