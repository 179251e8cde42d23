"""Networks trained on upright digits only, tested by angle: does co-attention generalise to poses it was not shown?

    python -m experiments.upright_study --folder runs \\
        --results results/upright_study.jsonl --picture docs/assets/upright_study

Conventional and co-attentive networks over quarter turns and over C8, three seeds, trained by the house recipe without
augmentation on the first 10,000 digits of MNIST. Each network then classifies 1,000 test digits rotated by 0 to 355
degrees. Every result is written as soon as it is known; started again, the program continues, also within a training.
``--data`` and ``--set`` (as in ``coattend train``) make it smaller.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from coattend.data import load_data
from coattend.report.curves import ANGLES, angle_figure, error_by_angle
from coattend.report.style import save
from coattend.train import RunFolder, changed, get_recipe, load_trained, train
from coattend.train.row import over_seeds
from experiments.rows import continued

PAIRS = {
    "p4": ("p4cnn", "a_p4cnn:attention=output"),
    "C8": ("p4cnn:group=C8,width=5", "a_p4cnn:group=C8,width=5,attention=output"),
}
MODELS = tuple(model for pair in PAIRS.values() for model in pair)
UPRIGHT = ("augmentation=none", "train_images=10000", "test_images=2000")
ROTATED = 1_000


@dataclass(frozen=True)
class Options:
    """Arguments of the program.

    Args:
        data: Dataset to train and test on.
        seeds: Seeds, each of which is a training of every network.
        folder: Folder of the runs.
        results: File of the results.
        picture: Name of the picture, without suffix.
        settings: Field of the recipe to change; may be repeated.
    """

    data: str = "mnist"
    seeds: tuple[int, ...] = (0, 1, 2)
    folder: Path = Path("runs")
    results: Path = Path("upright_study.jsonl")
    picture: Path = Path("upright_study")
    settings: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(name="set")] = ()


@dataclass(frozen=True)
class Result:
    """The test error of a network in percent, by the angle of the test images."""

    model: str
    seed: int
    recipe: str
    data: str
    error_by_angle: list[float]


def result_of(options: Options, model: str, seed: int) -> Result:
    """Train unless the run exists, then test at every angle."""
    recipe = changed(get_recipe("house", model, options.data), [*UPRIGHT, *options.settings])
    train(model, recipe, seed, options.folder, accelerator="cpu")
    trained = load_trained(RunFolder.of(options.folder, model, recipe, seed).path)
    test = load_data(options.data).test
    errors = error_by_angle(trained, test.images[:ROTATED], test.labels[:ROTATED])
    return Result(model, seed, recipe.name, options.data, list(errors))


def table(results: Sequence[Result]) -> str:
    """Return errors upright, over all angles and at the worst one, and the paired difference over all angles."""
    lines = [
        "| network | upright | all angles | worst angle | against its counterpart, all angles |",
        "|---|---|---|---|---|",
    ]
    for pair in PAIRS.values():
        curves = {model: {r.seed: r.error_by_angle for r in results if r.model == model} for model in pair}
        base = curves[pair[0]]
        for model in pair:
            own = curves[model]
            if not own:
                continue
            upright = statistics.fmean(curve[0] for curve in own.values())
            mean = statistics.fmean(statistics.fmean(curve) for curve in own.values())
            worst = max(statistics.fmean(errors) for errors in zip(*own.values(), strict=True))
            deltas = [statistics.fmean(own[s]) - statistics.fmean(base[s]) for s in sorted({*own} & {*base})]
            against = str(over_seeds(deltas)) if model != pair[0] and len(deltas) > 1 else ""
            lines.append(f"| {model} | {upright:.2f} | {mean:.2f} | {worst:.2f} | {against} |")
    return "\n".join(lines)


def main(options: Options) -> None:
    """Compute the missing results, write and draw all of them, and print the table."""

    def compute(case: tuple[int, str]) -> Result:
        seed, model = case
        result = result_of(options, model, seed)
        print(f"{model} seed {seed}: {statistics.fmean(result.error_by_angle):.2f}%", flush=True)
        return result

    cases = [(seed, model) for seed in options.seeds for model in MODELS]
    results = continued(options.results, Result, cases, lambda r: (r.seed, r.model), compute)
    curves = {model: [r.error_by_angle for r in results if r.model == model] for model in MODELS}
    means = {
        model: [statistics.fmean(errors) for errors in zip(*own, strict=True)] for model, own in curves.items() if own
    }
    assert all(len(curve) == len(ANGLES) for curve in means.values())
    save(angle_figure(means), options.picture)
    print(table(results))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
