"""Test error against the number of training images: with and without equivariance and attention.

    python -m experiments.small_data_study --folder runs \\
        --results results/small_data_study.jsonl --picture docs/assets/small_data_study

Networks of about equal size are trained by the recipe strong on the first 500 to 5,000 images of rotated MNIST, all
for the same number of steps, and tested after the last epoch. Every result is written as soon as it is known; started
again, the program continues, also within a training. ``--data``, ``--images``, ``--steps`` and ``--set`` (as in
``coattend train``) make it smaller.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from coattend.report.style import COLOURS, STYLES, drawing, save
from coattend.train import Recipe, changed, get_recipe, train
from coattend.train.row import interval, over_seeds
from experiments.rows import continued

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASE = "p4cnn:head=max"  # the network that the others are compared with
MODELS = (
    BASE,
    "z2cnn",
    "a_p4cnn:attention=output,head=max",
    "p4cnn:attention=gate,head=max",
    "p4cnn:group=C8,kernel=5,filters=steerable,head=max,width=7",
)


@dataclass(frozen=True)
class Options:
    """Arguments of the program.

    Args:
        data: Dataset to train and test on.
        seeds: Seeds, each of which is a training of every network with every number of images.
        images: Numbers of training images.
        steps: Steps of every training, rounded up to whole epochs.
        folder: Folder of the runs.
        results: File of the results.
        picture: Name of the picture, without suffix.
        settings: Field of the recipe to change; may be repeated.
    """

    data: str = "rotated-mnist"
    seeds: tuple[int, ...] = (0, 1, 2)
    images: tuple[int, ...] = (500, 1000, 2000, 5000)
    steps: int = 2000
    folder: Path = Path("runs")
    results: Path = Path("small_data_study.jsonl")
    picture: Path = Path("small_data_study")
    settings: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(name="set")] = ()


@dataclass(frozen=True)
class Result:
    """The test error of a network in percent after training on so many images."""

    model: str
    seed: int
    images: int
    recipe: str
    data: str
    error: float


def recipe_for(options: Options, model: str, images: int) -> Recipe:
    """Return the recipe with as many epochs as the steps take."""
    recipe = changed(get_recipe("strong", model, options.data), options.settings)
    epochs = -(-options.steps // -(-images // recipe.batch))
    return changed(recipe, [f"epochs={epochs}", f"train_images={images}", "equivariance_every=0"])


def table(results: Sequence[Result]) -> str:
    """Return mean errors by the number of images, and the paired differences from the first network."""
    counts = sorted({result.images for result in results})
    lines = [f"| network | {' | '.join(f'{count:,} images' for count in counts)} |", "|---" * (len(counts) + 1) + "|"]
    errors = {(r.model, r.images, r.seed): r.error for r in results}
    seeds = sorted({result.seed for result in results})

    def cell(model: str, count: int) -> str:
        own = [errors[model, count, seed] for seed in seeds if (model, count, seed) in errors]
        if not own:
            return ""
        common = [seed for seed in seeds if (model, count, seed) in errors and (BASE, count, seed) in errors]
        deltas = [errors[model, count, seed] - errors[BASE, count, seed] for seed in common]
        against = f" ({over_seeds(deltas)})" if model != BASE and len(deltas) > 1 else ""
        return f"{statistics.fmean(own):.2f}{against}"

    models = [model for model in MODELS if any(result.model == model for result in results)]
    return "\n".join([*lines, *(f"| {m} | {' | '.join(cell(m, count) for count in counts)} |" for m in models)])


def figure(results: Sequence[Result]) -> Figure:
    """Draw the mean error against the number of images, with 95% intervals over seeds."""
    with drawing(4.7, 4.6) as drawn:
        axes = drawn.add_axes((0.13, 0.36, 0.84, 0.58))
        for number, model in enumerate(MODELS):
            counts = sorted({result.images for result in results if result.model == model})
            own = [[r.error for r in results if (r.model, r.images) == (model, count)] for count in counts]
            colour, style = COLOURS[number % len(COLOURS)], STYLES[number % len(STYLES)]
            axes.plot(counts, [*map(statistics.fmean, own)], color=colour, linestyle=style, marker="o", label=model)
            for count, errors in zip(counts, own, strict=True):
                if (limits := interval(errors)) is not None:
                    axes.plot([count, count], limits, color=colour, linewidth=1)
        axes.set_xscale("log")
        counts = sorted({result.images for result in results})
        axes.set_xticks(counts, [f"{count:,}" for count in counts])
        axes.minorticks_off()
        axes.set_xlabel("training images")
        axes.set_title("test error in percent", loc="left")
        axes.grid(axis="y")
        drawn.legend(loc="lower left", fontsize=8, handlelength=2.6)
    return drawn


def main(options: Options) -> None:
    """Compute the missing results, write and draw all of them, and print the table."""

    def compute(case: tuple[int, int, str]) -> Result:
        seed, images, model = case
        recipe = recipe_for(options, model, images)
        error = train(model, recipe, seed, options.folder, accelerator="cpu").error.last
        return Result(model, seed, images, recipe.full_name, options.data, error)

    cases = [(seed, images, model) for seed in options.seeds for images in options.images for model in MODELS]
    results = continued(options.results, Result, cases, lambda r: (r.seed, r.images, r.model), compute)
    save(figure(results), options.picture)
    print(table(results))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
