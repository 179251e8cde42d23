"""Real images: does equivariance help beyond augmentation by rotation and flips, and at how many training images?

    python -m experiments.augmentation_study --plankton plankton48.npz --folder runs \\
        --results results/augmentation_study.jsonl --picture docs/assets/augmentation_study

Networks of one shape and about equal size, plain and over p4, p4m and C8, the last with steerable filters, and p4 with
gates, are trained on all images, 30 % and 10 % of them. All see images turned by any angle and mirrored, and all take
as many steps. The error is that of the test images after the last epoch. Plankton is that of the National Data Science
Bowl, ``images``, ``labels`` and ``classes`` in one .npz, 121 classes, 48 x 48 pixels. Radio galaxies are those of
``coattend data fetch radio-galaxies``, four classes, scaled to 64 x 64. Every result is written as soon as it is known;
started again, the program continues, also within a training.
"""

from __future__ import annotations

import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import tyro
from torch import nn

import coattend as ca
from coattend._files import write_atomically
from coattend.groups import Filters
from coattend.report.style import COLOURS, STYLES, drawing, save
from coattend.train import Recipe, changed, get_recipe, train
from coattend.train.row import interval, over_seeds
from experiments.rows import continued

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARES = (0.1, 0.3, 1.0)
# All with about as many parameters on plankton. The name is that of the result, the options are those of `network`.
NETWORKS = {
    "plain": "width=25,symmetry=p1",
    "p4": "width=12,symmetry=p4",
    "p4m": "width=9,symmetry=p4m",
    "C8": "width=8,symmetry=C8,kernel=5,steerable=true",
    "p4, gates": "width=12,symmetry=p4,gates=true",
}
BASE = "plain"
Data = Literal["plankton", "radio-galaxies"]
STEPS: dict[Data, int] = {"plankton": 1500, "radio-galaxies": 800}
Parts = dict[str, tuple[np.ndarray, np.ndarray]]  # images and labels of each split


def network(
    num_classes: int,
    in_channels: int,
    width: int = 12,
    symmetry: str = "p4",
    kernel: int = 3,
    steerable: bool = False,
    gates: bool = False,
) -> nn.Module:
    """Build six layers with three 2x2 maxima between them, then the maximum over poses and the mean over positions."""
    group = ca.get_group(symmetry)
    filters: Filters = "steerable" if steerable else "free"

    def layer(inputs: int, outputs: int) -> list[nn.Module]:
        conv = ca.nn.GroupConv2d(inputs, outputs, kernel, group, padding=kernel // 2, bias=False, filters=filters)
        block = ca.nn.FusedSequential(conv, ca.nn.GroupBatchNorm2d(outputs), nn.ReLU())
        return [ca.nn.GroupGate2d(inputs, group), block] if gates else [block]

    def pool() -> nn.Module:
        return ca.nn.SpatialMaxPool2d(2)

    stem = ca.nn.LiftingConv2d(in_channels, width, 5, group, padding=2, bias=False, filters=filters)
    return nn.Sequential(
        ca.nn.FusedSequential(stem, ca.nn.GroupBatchNorm2d(width), nn.ReLU()),
        pool(),
        *layer(width, width),
        *layer(width, 2 * width),
        pool(),
        *layer(2 * width, 2 * width),
        *layer(2 * width, 2 * width),
        pool(),
        *layer(2 * width, 2 * width),
        ca.nn.GroupPool(group, "max"),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, num_classes),
    )


@dataclass(frozen=True)
class Options:
    """Arguments of the program.

    Args:
        plankton: The .npz file with images of plankton.
        data: Datasets to train and test on.
        seeds: Seeds, each of which is a training of every network with every share of the images.
        shares: Shares of the training images.
        networks: Names of networks.
        steps: Steps of every training, rounded up to whole epochs; by default 1,500 on plankton and 800 on galaxies.
        folder: Folder of the runs.
        results: File of the results.
        picture: Name of the picture, without suffix.
        settings: Field of the recipe to change; may be repeated.
    """

    plankton: Path = Path("plankton48.npz")
    data: tuple[Data, ...] = ("plankton", "radio-galaxies")
    seeds: tuple[int, ...] = (0, 1, 2)
    shares: tuple[float, ...] = SHARES
    networks: tuple[str, ...] = tuple(NETWORKS)
    steps: int | None = None
    folder: Path = Path("runs")
    results: Path = Path("augmentation_study.jsonl")
    picture: Path = Path("augmentation_study")
    settings: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(name="set")] = ()


@dataclass(frozen=True)
class Result:
    """The test error of a network in percent after training on so many images."""

    data: Data
    network: str
    seed: int
    share: float
    images: int
    parameters: int
    recipe: str
    error: float
    seconds: float


def prepared(options: Options, data: Data) -> Path:
    """Return a file with the images, bright on black, in three splits in a random order, so that any part is mixed."""
    path = options.folder / "prepared" / f"{data}.npz"
    if not path.is_file():
        parts, classes = plankton(options.plankton) if data == "plankton" else galaxies()
        generator = np.random.default_rng(0)
        arrays: dict[str, Any] = {"classes": classes}
        for name, (images, labels) in parts.items():
            order = generator.permutation(len(labels))
            arrays |= {f"{name}_images": images[order], f"{name}_labels": labels[order]}
        path.parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        write_atomically(path, buffer.getvalue())
    return path


def plankton(source: Path) -> tuple[Parts, np.ndarray]:
    """Return 70, 10 and 20 % of each class in a fixed order, and the names of the classes."""
    with np.load(source, allow_pickle=False) as file:
        images, labels, classes = 255 - file["images"], file["labels"].astype(np.int64), file["classes"]
    order = np.random.default_rng(0).permutation(len(labels))
    members: dict[str, list[np.ndarray]] = {"train": [], "val": [], "test": []}
    for label in range(len(classes)):
        own = order[labels[order] == label]
        cuts = [int(0.7 * len(own)), int(0.8 * len(own))]
        for name, part in zip(members, np.split(own, cuts), strict=True):
            members[name].append(part)
    indices = {name: np.concatenate(parts) for name, parts in members.items()}
    return {name: (images[index], labels[index]) for name, index in indices.items()}, classes


def galaxies() -> tuple[Parts, np.ndarray]:
    """Return the official splits, whose images are sorted by class, and the names of the classes."""
    data = ca.data.load_data("radio-galaxies")
    splits = {"train": data.train, "val": data.valid, "test": data.test}
    parts = {name: (split.images.numpy()[:, 0], split.labels.numpy()) for name, split in splits.items()}
    return parts, np.array(data.classes)


def recipe_for(options: Options, data: Data, share: float) -> Recipe:
    """Return the recipe with as many images as the share and as many epochs as the steps take."""
    path = prepared(options, data)
    images = round(share * len(ca.data.load_data(str(path)).train))
    size = ["size=64"] if data == "radio-galaxies" else []
    fixed = ["augmentation=rotate,flips", "batch=64", "precision=auto", "equivariance_every=0"]
    unused = ["valid_images=100"]  # no epoch is chosen
    recipe = changed(get_recipe("house", data=str(path)), [*fixed, *unused, *size, *options.settings])
    epochs = -(-(options.steps or STEPS[data]) // -(-images // recipe.batch))
    return changed(recipe, [f"epochs={epochs}", f"train_images={images}"])


def table(data: Data, results: Sequence[Result]) -> str:
    """Return mean errors by the number of images, and the paired differences from the plain network."""
    own = [result for result in results if result.data == data]
    counts = sorted({result.images for result in own})
    errors = {(r.network, r.images, r.seed): r.error for r in own}
    lines = [
        f"| {data} | parameters | {' | '.join(f'{count:,} images' for count in counts)} |",
        "|---" * (len(counts) + 2) + "|",
    ]

    def cell(name: str, count: int) -> str:
        seeds = sorted(r.seed for r in own if (r.network, r.images) == (name, count))
        if not seeds:
            return ""
        deltas = [errors[name, count, s] - errors[BASE, count, s] for s in seeds if (BASE, count, s) in errors]
        against = ""
        if name != BASE and deltas:
            against = f" ({over_seeds(deltas)})" if len(deltas) > 1 else f" ({deltas[0]:+.2f}, one seed)"
        return f"{statistics.fmean(errors[name, count, seed] for seed in seeds):.2f}{against}"

    for name in NETWORKS:
        sizes = {r.parameters for r in own if r.network == name}
        if sizes:
            cells = " | ".join(cell(name, count) for count in counts)
            lines.append(f"| {name} | {max(sizes):,} | {cells} |")
    return "\n".join(lines)


def figure(results: Sequence[Result]) -> Figure:
    """Draw the mean error against the number of images, with 95% intervals over seeds, for each dataset."""
    names = sorted({result.data for result in results})
    with drawing(4.2 * len(names), 4.2) as drawn:
        for column, data in enumerate(names):
            axes = drawn.add_axes(((column + 0.13) / len(names), 0.21, 0.82 / len(names), 0.71))
            for number, name in enumerate(NETWORKS):
                own = [r for r in results if (r.data, r.network) == (data, name)]
                counts = sorted({r.images for r in own})
                errors = [[r.error for r in own if r.images == count] for count in counts]
                colour, style = COLOURS[number % len(COLOURS)], STYLES[number % len(STYLES)]
                label = name if column == 0 else None
                axes.plot(
                    counts, [*map(statistics.fmean, errors)], color=colour, linestyle=style, marker="o", label=label
                )
                for count, values in zip(counts, errors, strict=True):
                    if (limits := interval(values)) is not None:
                        axes.plot([count, count], limits, color=colour, linewidth=1)
            axes.set_xscale("log")
            ticks = sorted({r.images for r in results if r.data == data})
            axes.set_xticks(ticks, [f"{count:,}" for count in ticks])
            axes.minorticks_off()
            axes.set_xlabel("training images")
            axes.set_title(f"{data}: test error in percent", loc="left")
            axes.grid(axis="y")
        drawn.legend(loc="lower center", ncols=len(NETWORKS), fontsize=8, handlelength=2.6)
    return drawn


def main(options: Options) -> None:
    """Compute the missing results, write and draw all of them, and print the tables."""

    def compute(case: tuple[Data, int, float, str]) -> Result:
        data, seed, share, name = case
        recipe = recipe_for(options, data, share)
        result = train(f"{__spec__.name}:network:{NETWORKS[name]}", recipe, seed, options.folder, accelerator="cpu")
        print(f"{data} {share:g} {name} seed {seed}: {result.error.last:.2f}%", flush=True)
        images = recipe.train_images or 0
        last, seconds = result.error.last, result.seconds
        return Result(data, name, seed, share, images, result.parameters, recipe.full_name, last, seconds)

    cases = [
        (data, seed, share, name)
        for seed in options.seeds
        for data in options.data
        for share in options.shares
        for name in options.networks
    ]
    results = continued(options.results, Result, cases, lambda r: (r.data, r.seed, r.share, r.network), compute)
    save(figure(results), options.picture, (".png",))
    print("\n\n".join(table(data, results) for data in options.data))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
