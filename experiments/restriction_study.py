"""Error against operations: relative poses kept by what they contribute, by weight size, or at random.

    python -m experiments.restriction_study --data rotated-mnist --recipe house --seeds 0,1,2 --folder runs \\
        --results results/restriction_study.json --picture docs/assets/restriction_study

For a-p4-CNN and the same network over C8, each seed is trained by the recipe, then cut to all, half and a quarter of
the relative poses of every group convolution, and fine-tuned. "all" is fine-tuned as well, so that all had the same
training. Every result is written as soon as it is there: started again, the program goes on, within a training too.
``--set`` changes fields of the recipe, as in ``coattend train``.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from coattend._files import write_atomically
from coattend.data import load_data
from coattend.models import EquivariantNetwork, Probe, choose_poses, contributions, group_convolutions, restricted
from coattend.nn.observe import estimate_norm_statistics, multiply_adds
from coattend.report.style import COLOURS, STYLES, drawing, save
from coattend.train import RunFolder, changed, get_recipe, load_trained, train
from coattend.train.batches import Examples
from coattend.train.comparison import over_seeds
from coattend.train.evaluate import evaluate
from coattend.train.restriction import examples, fine_tune

NETWORKS = {"a-p4-CNN": "a_p4cnn", "a-p4-CNN over C8": "a_p4cnn:group=C8,width=5,attention=output"}
SHARES = (1, 2, 4)  # all, a half, a quarter
WAYS = {"logits": "by the logits", "weights": "by weight size", "random": "at random"}
MEASURED = 256


def chosen_poses(network: EquivariantNetwork, way: str, keep: int, train_set: Examples, seed: int) -> dict[str, Any]:
    """The poses that one way of choosing keeps."""
    probe = Probe.of(network, train_set.images[:MEASURED], train_set.labels[:MEASURED])
    chance = torch.Generator().manual_seed(seed)

    def measure(rest: nn.Module, layers: Iterable[str]) -> dict[str, Tensor]:
        if way == "random":
            sizes = {name: len(layer.relative) for name, layer in group_convolutions(rest).items()}
            return {name: torch.rand(sizes[name], generator=chance) for name in layers}
        return contributions(rest, probe, "weights" if way == "weights" else "logits", layers)

    return choose_poses(network, measure, keep=keep)


def result_of(arguments: argparse.Namespace, model: str, seed: int, share: int, way: str) -> dict[str, Any]:
    """Train if need be, cut, fine-tune, test."""
    recipe = changed(get_recipe(arguments.recipe, model, arguments.data), arguments.set)
    train(model, recipe, seed, arguments.folder, accelerator="cpu")
    trained = load_trained(RunFolder.of(arguments.folder, model, recipe, seed).path)
    data = load_data(arguments.data)
    train_set = examples(trained, data.train, recipe.train_images)
    valid_set = examples(trained, data.valid, None)
    test_set = examples(trained, data.test, recipe.test_images)
    network = copy.deepcopy(trained.network)
    keep = max(1, network.group.order // share)
    if share > 1:
        network = restricted(network, chosen_poses(network, way, keep, train_set, seed))
        estimate_norm_statistics(network, train_set.images.split(recipe.batch))
    fabric = Fabric(accelerator="cpu", devices=1)
    cut = evaluate(fabric, network, valid_set)
    fine_tune(network, recipe, train_set, arguments.epochs, seed)
    tuned = evaluate(fabric, network, test_set)
    return {
        "model": model,
        "seed": seed,
        "share": share,
        "way": way,
        "kept": {name: list(layer.relative) for name, layer in group_convolutions(network).items()},
        "operations": sum(multiply_adds(network, trained.image_shape).values()),
        "parameters": sum(p.numel() for p in network.parameters()),
        "error_cut_valid": cut.error,
        "error": tuned.error,
        "test_images": len(test_set),
        "recipe": recipe.name,
        "data": arguments.data,
        "fine_tuning_epochs": arguments.epochs,
    }


def draw(results: list[dict[str, Any]], picture: Path) -> None:
    """Error by operations, one panel per network, a line per way, seeds as dots."""
    highest = max(r["error"] for r in results)
    with drawing(7.2, 3.1) as figure:
        for place, (title, model) in enumerate(NETWORKS.items()):
            axes = figure.add_subplot(1, len(NETWORKS), place + 1)
            for (way, label), colour, style in zip(WAYS.items(), COLOURS, STYLES, strict=False):
                mine = [r for r in results if r["model"] == model and (r["way"] == way or r["share"] == 1)]
                shares = sorted({r["share"] for r in mine})
                points = [[r for r in mine if r["share"] == share] for share in shares]
                costs = [p[0]["operations"] / 1e6 for p in points]
                axes.plot(
                    costs, [statistics.mean(r["error"] for r in p) for p in points], style, color=colour, label=label
                )
                for cost, p in zip(costs, points, strict=True):
                    axes.plot([cost] * len(p), [r["error"] for r in p], "o", color=colour, markersize=3, alpha=0.6)
            axes.set_title(title)
            axes.set_xlabel("million multiply-adds per image")
            axes.set_xlim(left=0)
            axes.set_ylim(0, 1.05 * highest)
            if place == 0:
                axes.set_ylabel("test error, %")
                axes.legend(title="poses kept", fontsize=8)
        figure.tight_layout()
    save(figure, picture)


def table(results: list[dict[str, Any]]) -> str:
    """Means and single seeds as a table for a document; differences to poses kept at random are paired over seeds."""
    lines = [
        "| network | kept | chosen | multiply-adds | error % when cut (validation) | error %, fine-tuned | "
        "against random |",
        "|---|---|---|---|---|---|---|",
    ]
    for title, model in NETWORKS.items():
        for share in SHARES:
            by_way = {
                way: sorted(
                    (r for r in results if (r["model"], r["share"], r["way"]) == (model, share, way)),
                    key=lambda r: int(r["seed"]),
                )
                for way in WAYS
            }
            for way, mine in by_way.items():
                if mine:
                    cut, tuned = ([r[key] for r in mine] for key in ("error_cut_valid", "error"))
                    seeds = ", ".join(f"{e:.2f}" for e in tuned)
                    kept, label = ("all", "") if share == 1 else (f"1/{share}", WAYS[way])
                    lines.append(
                        f"| {title} | {kept} | {label} | {mine[0]['operations']:,} | {statistics.mean(cut):.2f} | "
                        f"{statistics.mean(tuned):.2f} ({seeds}) | {_against(mine, by_way['random'])} |"
                    )
    return "\n".join(lines)


def _against(mine: list[dict[str, Any]], random: list[dict[str, Any]]) -> str:
    theirs = {r["seed"]: r["error"] for r in random}
    deltas = [r["error"] - theirs[r["seed"]] for r in mine if r["seed"] in theirs]
    if mine == random or len(deltas) < 2:
        return ""
    return str(over_seeds(deltas))


def main() -> None:
    """Do what is missing, write the results, draw them, print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="mini")
    parser.add_argument("--recipe", default="quick")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    parser.add_argument("--results", type=Path, default=Path("restriction_study.json"))
    parser.add_argument("--picture", type=Path, default=Path("restriction_study"))
    parser.add_argument("--epochs", type=int, default=3, help="of fine-tuning")
    parser.add_argument("--set", action="append", default=[], help="field=value of the recipe")
    arguments = parser.parse_args()
    results: list[dict[str, Any]] = json.loads(arguments.results.read_text()) if arguments.results.is_file() else []
    done = {(r["model"], r["seed"], r["share"], r["way"]) for r in results}
    wanted = [
        (model, seed, share, way)
        for seed in (int(s) for s in arguments.seeds.split(","))
        for model in NETWORKS.values()
        for share in SHARES
        for way in (WAYS if share > 1 else ("logits",))
    ]
    for case in wanted:
        if case not in done:
            results.append(result_of(arguments, *case))
            write_atomically(arguments.results, (json.dumps(results, indent=1) + "\n").encode())
            print(f"{case}: {results[-1]['error']:.2f}%", flush=True)
    draw(results, arguments.picture)
    print(table(results))


if __name__ == "__main__":
    main()
