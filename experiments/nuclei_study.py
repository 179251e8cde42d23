"""Segmentation of nuclei: a plain U-Net against one over p4m with as many parameters, by the number of images.

    OMP_NUM_THREADS=1 python -m experiments.nuclei_study --data nuclei256.npz \\
        --folder runs --results results/nuclei_study.jsonl

Fluorescence images of the Data Science Bowl 2018 (BBBC038), 256 x 256 pixels: 233 to train, 34 to validate and 67 to
test, ``images`` and numbered nuclei as ``labels`` in one .npz. All networks are trained with the same random turns by
any angle, mirrors and bendings, on all images or a tenth of them, and tested after the last epoch. Dice is that of the
nuclei over all pixels of the test images. Consistency is the share of pixels whose class is the same when the image is
predicted in each of its eight poses. Every result is written as soon as it is known; started again, the program
continues, also within a training.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro
from torch import Tensor, nn

import coattend as ca
from coattend.data import Dataset, Split, load_data
from coattend.data.nuclei import CLASSES, split_indices
from coattend.data.store import open_npz, save_dataset
from coattend.groups import transform_image
from coattend.models.classifier import LAST, load_trained
from coattend.nn.observe import evaluating
from coattend.tasks.segmentation import dice
from coattend.train import Recipe, changed, get_recipe, train
from coattend.train.row import over_seeds
from experiments.rows import continued

GROUP = ca.get_group("p4m")
NETWORKS = {"plain": "coat_unet:group=z2", "p4m": "coat_unet:match=params"}
SETTINGS = (
    "augmentation=flips,elastic=8,rotate",
    "batch=4",
    "equivariance_every=0",
    "precision=bf16-mixed",
    "valid_images=8",
)


@dataclass(frozen=True)
class Options:
    """Arguments of the program.

    Args:
        data: The .npz file with images and labels.
        seeds: Seeds, each of which is a training of both networks on every share.
        shares: Training images in percent.
        epochs: Epochs of a training with each share; by default about 590 steps of 4 images with both.
        width: Channels of the first level of the plain network.
        folder: Folder of the runs.
        results: File of the results.
        settings: Field of the recipe to change; may be repeated.
    """

    data: Path = Path("nuclei256.npz")
    seeds: tuple[int, ...] = (0, 1, 2)
    shares: tuple[int, ...] = (10, 100)
    epochs: tuple[int, ...] = (100, 10)
    width: int = 8
    folder: Path = Path("runs")
    results: Path = Path("nuclei_study.jsonl")
    settings: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(name="set")] = ()


@dataclass(frozen=True)
class Result:
    """Dice and consistency of a network in percent after training on a share of the images in percent."""

    network: str
    seed: int
    share: int
    parameters: int
    recipe: str
    dice: float
    consistency: float
    minutes: float


def write_splits(source: Path, path: Path) -> None:
    """Write grey images and masks, divided as those of nuclei-mini."""
    with open_npz(source) as file:
        images = torch.from_numpy(file["images"][..., 0][:, None])
        masks = torch.from_numpy((file["labels"] > 0).astype(np.uint8))
    train, valid, test = (
        Split(images[part], masks[part]) for part in map(torch.from_numpy, split_indices(len(images)))
    )
    provenance = "Data Science Bowl 2018 nuclei (BBBC038, CC0), its 334 images of 256 x 256"
    save_dataset(Dataset("nuclei256", train, valid, test, CLASSES, provenance, "segmentation"), path)


def predictions(model: nn.Module, images: Tensor) -> Iterator[Tensor]:
    """Yield the class of every pixel, predicted in each pose of the images and moved back."""
    with evaluating(model):
        for g in GROUP.elements:
            moved = transform_image(images.float(), GROUP, g)
            classes = torch.cat([model(batch).argmax(1, keepdim=True) for batch in moved.split(4)])
            yield transform_image(classes.float(), GROUP, int(GROUP.inverse[g]))[:, 0].long()


def measured(model: nn.Module, images: Tensor, masks: Tensor) -> tuple[float, float]:
    """Return the Dice of the nuclei, and consistency, in percent."""
    upright, *others = predictions(model, images)
    confusion = torch.bincount((masks.long() * 2 + upright).flatten(), minlength=4).view(2, 2)
    same = torch.stack([upright == other for other in others]).all(0)
    return 100 * dice(confusion.double())[1].item(), 100 * same.float().mean().item()


def study(case: tuple[int, int, str], path: Path, options: Options) -> Result:
    """Train and measure one network."""
    seed, share, network = case
    model = f"{NETWORKS[network]},width={options.width}"
    name = f"nuclei-{network}-{share}percent"
    recipe = recipe_for(options, model, path, share)
    result = train(model, recipe, seed, options.folder, name=name, accelerator="cpu")
    trained = load_trained(options.folder / name / f"seed{seed}" / LAST)
    test = load_data(str(path)).test
    quality = measured(trained, test.images, test.labels)
    row = Result(network, seed, share, result.parameters, recipe.full_name, *quality, result.seconds / 60)
    print(row, flush=True)
    return row


def recipe_for(options: Options, model: str, path: Path, share: int) -> Recipe:
    """Return the recipe for a share of the training images."""
    epochs = dict(zip(options.shares, options.epochs, strict=True))[share]
    images = [] if share == 100 else [f"train_images={len(load_data(str(path)).train) * share // 100}"]
    recipe = get_recipe("dense", model, str(path))
    return changed(recipe, [*SETTINGS, *images, f"epochs={epochs}", *options.settings])


def table(results: Sequence[Result]) -> str:
    """Return means over seeds, and the difference of the networks, paired over seeds."""
    lines = ["| images | network | parameters | Dice | consistency | minutes |", "|---|---|---|---|---|---|"]
    for share in sorted({result.share for result in results}, reverse=True):
        by_network = {n: {r.seed: r for r in results if (r.network, r.share) == (n, share)} for n in NETWORKS}
        for network, rows in by_network.items():
            quality = ", ".join(f"{row.dice:.2f}" for row in rows.values())
            mean, least = statistics.fmean(r.dice for r in rows.values()), min(r.consistency for r in rows.values())
            minutes = statistics.fmean(row.minutes for row in rows.values())
            count = next(iter(rows.values())).parameters
            lines.append(
                f"| {share} % | {network} | {count:,} | {mean:.2f} ({quality}) | {least:.4f} % | {minutes:.0f} |"
            )
        seeds = sorted(set.intersection(*map(set, by_network.values())))
        if len(seeds) > 1:
            deltas = [by_network["p4m"][seed].dice - by_network["plain"][seed].dice for seed in seeds]
            difference = over_seeds(deltas)
            text = f"{difference.mean:+.2f} [{difference.low:+.2f}, {difference.high:+.2f}]"
            lines.append(f"| {share} % | p4m - plain | | {text} | | |")
    return "\n".join(lines)


def main(options: Options) -> None:
    """Compute the missing results, write all of them, and print the table."""
    path = options.folder / "nuclei256.npz"
    if not path.is_file():
        write_splits(options.data, path)
    cases = [(seed, share, network) for seed in options.seeds for share in options.shares for network in NETWORKS]
    results = continued(
        options.results, Result, cases, lambda r: (r.seed, r.share, r.network), lambda case: study(case, path, options)
    )
    print(table(results))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
