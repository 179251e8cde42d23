"""Test error against multiply-adds, with relative poses chosen by contribution, by weight size, or at random.

    python -m experiments.restriction_study --data rotated-mnist-v1 --recipe house --seeds 0 1 2 --folder runs \\
        --results results/restriction_study.jsonl --picture docs/assets/restriction_study

a-p4-CNN and the same network over C8 are trained by the recipe, restricted to all, a half and a quarter of the relative
poses of every group convolution, and fine-tuned. Networks with all poses are fine-tuned as well, so that all have the
same training. Every result is written as soon as it is known; started again, the program continues, also within a
training. ``--set`` changes fields of the recipe, as in ``coattend train``.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro
from lightning_fabric import Fabric
from torch import Tensor, nn

from coattend.data import load_data
from coattend.models import EquivariantNetwork, Probe, choose_poses, contributions, group_convolutions, restricted
from coattend.nn.observe import estimate_norm_statistics, multiply_adds
from coattend.report.style import COLOURS, STYLES, drawing, save
from coattend.train import RunFolder, changed, get_recipe, load_trained, train
from coattend.train.batches import Examples
from coattend.train.evaluate import evaluate
from coattend.train.restriction import examples, fine_tune
from coattend.train.row import over_seeds
from experiments.rows import read_rows, write_rows

NETWORKS = {"a-p4-CNN": "a_p4cnn", "a-p4-CNN over C8": "a_p4cnn:group=C8,width=5,attention=output"}
SHARES = (1, 2, 4)  # all, a half, a quarter
WAYS = {"logits": "by the logits", "weights": "by weight size", "random": "at random"}
MEASURED = 256


@dataclass(frozen=True)
class Options:
    """Arguments of the program.

    Args:
        data: Dataset to train and test on.
        recipe: Recipe to train by.
        seeds: Seeds, each of which is a training of every network.
        folder: Folder of the runs.
        results: File of the results.
        picture: Name of the picture, without suffix.
        epochs: Epochs of fine-tuning.
        settings: Field of the recipe to change; may be repeated.
    """

    data: str = "mini"
    recipe: str = "quick"
    seeds: tuple[int, ...] = (0, 1, 2)
    folder: Path = Path("runs")
    results: Path = Path("restriction_study.jsonl")
    picture: Path = Path("restriction_study")
    epochs: int = 3
    settings: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(name="set")] = ()


@dataclass(frozen=True)
class Result:
    """A restricted network: its poses, cost, and errors in percent before (validation) and after (test) fine-tuning."""

    model: str
    seed: int
    share: int
    way: str
    kept: dict[str, list[int]]
    operations: int
    parameters: int
    error_cut_valid: float
    error: float
    test_images: int
    recipe: str
    data: str
    fine_tuning_epochs: int


def chosen_poses(
    network: EquivariantNetwork, way: str, keep: int, train_set: Examples, seed: int
) -> dict[str, tuple[int, ...]]:
    """Return the poses that one way of choosing keeps."""
    probe = Probe.of(network, train_set.images[:MEASURED], train_set.labels[:MEASURED])
    generator = torch.Generator().manual_seed(seed)

    def measure(rest: nn.Module, layers: Iterable[str]) -> dict[str, Tensor]:
        if way == "random":
            sizes = {name: len(layer.relative) for name, layer in group_convolutions(rest).items()}
            return {name: torch.rand(sizes[name], generator=generator) for name in layers}
        return contributions(rest, probe, "weights" if way == "weights" else "logits", layers)

    return choose_poses(network, measure, keep=keep)


def result_of(options: Options, model: str, seed: int, share: int, way: str) -> Result:
    """Train unless the run exists, restrict, fine-tune, test."""
    recipe = changed(get_recipe(options.recipe, model, options.data), options.settings)
    train(model, recipe, seed, options.folder, accelerator="cpu")
    trained = load_trained(RunFolder.of(options.folder, model, recipe, seed).path)
    data = load_data(options.data)
    train_set = examples(trained, data.train, recipe.train_images)
    valid_set = examples(trained, data.valid, None)
    test_set = examples(trained, data.test, recipe.test_images)
    network = trained.network
    if share > 1:
        keep = max(1, network.group.order // share)
        network = restricted(network, chosen_poses(network, way, keep, train_set, seed))
        estimate_norm_statistics(network, train_set.images.split(recipe.batch))
    fabric = Fabric(accelerator="cpu", devices=1)
    before = evaluate(fabric, network, valid_set)
    fine_tune(network, recipe, train_set, options.epochs, seed)
    return Result(
        model=model,
        seed=seed,
        share=share,
        way=way,
        kept={name: list(layer.relative) for name, layer in group_convolutions(network).items()},
        operations=sum(multiply_adds(network, trained.image_shape).values()),
        parameters=sum(p.numel() for p in network.parameters()),
        error_cut_valid=before.error,
        error=evaluate(fabric, network, test_set).error,
        test_images=len(test_set),
        recipe=recipe.name,
        data=options.data,
        fine_tuning_epochs=options.epochs,
    )


def draw(results: Sequence[Result], picture: Path) -> None:
    """Draw the error by multiply-adds: a panel per network, a line per way, a dot per seed."""
    highest = max(r.error for r in results)
    with drawing(7.2, 3.1) as figure:
        for number, (title, model) in enumerate(NETWORKS.items()):
            axes = figure.add_subplot(1, len(NETWORKS), number + 1)
            for (way, label), colour, style in zip(WAYS.items(), COLOURS, STYLES, strict=False):
                own = [r for r in results if r.model == model and (r.way == way or r.share == 1)]
                points = [[r for r in own if r.share == share] for share in sorted({r.share for r in own})]
                costs = [p[0].operations / 1e6 for p in points]
                means = [statistics.mean(r.error for r in p) for p in points]
                axes.plot(costs, means, style, color=colour, label=label)
                for cost, p in zip(costs, points, strict=True):
                    axes.plot([cost] * len(p), [r.error for r in p], "o", color=colour, markersize=3, alpha=0.6)
            axes.set_title(title)
            axes.set_xlabel("million multiply-adds per image")
            axes.set_xlim(left=0)
            axes.set_ylim(0, 1.05 * highest)
            if number == 0:
                axes.set_ylabel("test error, %")
                axes.legend(title="poses kept", fontsize=8)
        figure.tight_layout()
    save(figure, picture)


def table(results: Sequence[Result]) -> str:
    """Return means and single seeds as Markdown; differences to poses chosen at random are paired over seeds."""
    lines = [
        "| network | kept | chosen | multiply-adds | error % before fine-tuning (validation) | error %, fine-tuned | "
        "against random |",
        "|---|---|---|---|---|---|---|",
    ]
    for title, model in NETWORKS.items():
        for share in SHARES:
            of_share = sorted((r for r in results if (r.model, r.share) == (model, share)), key=lambda r: r.seed)
            by_way = {way: [r for r in of_share if r.way == way] for way in WAYS}
            for way, own in by_way.items():
                if own:
                    seeds = ", ".join(f"{r.error:.2f}" for r in own)
                    kept, label = ("all", "") if share == 1 else (f"1/{share}", WAYS[way])
                    before, after = (
                        statistics.mean(r.error_cut_valid for r in own),
                        statistics.mean(r.error for r in own),
                    )
                    lines.append(
                        f"| {title} | {kept} | {label} | {own[0].operations:,} | {before:.2f} | "
                        f"{after:.2f} ({seeds}) | {_against(own, by_way['random'])} |"
                    )
    return "\n".join(lines)


def _against(own: Sequence[Result], random: Sequence[Result]) -> str:
    errors = {r.seed: r.error for r in random}
    deltas = [r.error - errors[r.seed] for r in own if r.seed in errors]
    return "" if own == random or len(deltas) < 2 else str(over_seeds(deltas))


def main(options: Options) -> None:
    """Compute the missing results, write and draw all of them, and print the table."""
    results = read_rows(options.results, Result)
    done = {(r.model, r.seed, r.share, r.way) for r in results}
    cases = [
        (model, seed, share, way)
        for seed in options.seeds
        for model in NETWORKS.values()
        for share in SHARES
        for way in (WAYS if share > 1 else ("logits",))
    ]
    for case in cases:
        if case not in done:
            results.append(result_of(options, *case))
            write_rows(options.results, results)
            print(f"{case}: {results[-1].error:.2f}%", flush=True)
    draw(results, options.picture)
    print(table(results))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
