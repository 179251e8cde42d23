"""Train on upright digits alone, test by angle: does co-attention carry over to poses that were never seen?

    python -m experiments.upright_study --folder runs \\
        --results results/upright_study.json --picture docs/assets/upright_study

Conventional against co-attentive networks, over quarter turns and over C8, three seeds, by the house recipe without
augmentation on the first 10,000 digits of MNIST. Each network then reads 1,000 test digits turned by 0 to 355 degrees.
Every result is written as soon as it is there: started again, the program goes on, within a training too. ``--data``
and ``--set`` (as in ``coattend train``) make it smaller.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from coattend._files import write_atomically
from coattend.data import load_data
from coattend.report.curves import ANGLES, angle_figure, error_by_angle
from coattend.report.style import save
from coattend.train import RunFolder, changed, get_recipe, load_trained, train
from coattend.train.comparison import over_seeds

PAIRS = {
    "p4": ("p4cnn", "a_p4cnn:attention=output"),
    "C8": ("p4cnn:group=C8,width=5", "a_p4cnn:group=C8,width=5,attention=output"),
}
MODELS = tuple(model for pair in PAIRS.values() for model in pair)
UPRIGHT = ("augmentation=none", "train_images=10000", "test_images=2000")
TURNED = 1_000


def result_of(arguments: argparse.Namespace, model: str, seed: int) -> dict[str, Any]:
    """Train if need be, then test at every angle."""
    recipe = changed(get_recipe("house", model, arguments.data), [*UPRIGHT, *arguments.set])
    train(model, recipe, seed, arguments.folder, accelerator="cpu")
    trained = load_trained(RunFolder.of(arguments.folder, model, recipe, seed).path)
    test = load_data(arguments.data).test
    errors = error_by_angle(trained, test.images[:TURNED], test.labels[:TURNED])
    return {"model": model, "seed": seed, "recipe": recipe.name, "data": arguments.data, "error_by_angle": errors}


def table(results: list[dict[str, Any]]) -> str:
    """Error upright, over all angles and at the worst one, and the paired difference over all angles."""
    lines = [
        "| network | upright | all angles | worst angle | against its counterpart, all angles |",
        "|---|---|---|---|---|",
    ]
    for pair in PAIRS.values():
        curves = {model: {r["seed"]: r["error_by_angle"] for r in results if r["model"] == model} for model in pair}
        base = curves[pair[0]]
        for model in pair:
            mine = curves[model]
            if not mine:
                continue
            upright = statistics.fmean(curve[0] for curve in mine.values())
            mean = statistics.fmean(statistics.fmean(curve) for curve in mine.values())
            worst = max(statistics.fmean(errors) for errors in zip(*mine.values(), strict=True))
            deltas = [statistics.fmean(mine[s]) - statistics.fmean(base[s]) for s in sorted({*mine} & {*base})]
            against = str(over_seeds(deltas)) if model != pair[0] and len(deltas) > 1 else ""
            lines.append(f"| {model} | {upright:.2f} | {mean:.2f} | {worst:.2f} | {against} |")
    return "\n".join(lines)


def main() -> None:
    """Do what is missing, write the results, draw them, print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    parser.add_argument("--results", type=Path, default=Path("upright_study.json"))
    parser.add_argument("--picture", type=Path, default=Path("upright_study"))
    parser.add_argument("--set", action="append", default=[], help="field=value of the recipe")
    arguments = parser.parse_args()
    results: list[dict[str, Any]] = json.loads(arguments.results.read_text()) if arguments.results.is_file() else []
    done = {(r["model"], r["seed"]) for r in results}
    for seed in (int(s) for s in arguments.seeds.split(",")):
        for model in MODELS:
            if (model, seed) not in done:
                results.append(result_of(arguments, model, seed))
                write_atomically(arguments.results, (json.dumps(results, indent=1) + "\n").encode())
                print(f"{model} seed {seed}: {statistics.fmean(results[-1]['error_by_angle']):.2f}%", flush=True)
    means = {
        model: [
            statistics.fmean(errors)
            for errors in zip(*(r["error_by_angle"] for r in results if r["model"] == model), strict=True)
        ]
        for model in MODELS
        if any(r["model"] == model for r in results)
    }
    assert all(len(curve) == len(ANGLES) for curve in means.values())
    save(angle_figure(means), arguments.picture)
    print(table(results))


if __name__ == "__main__":
    main()
