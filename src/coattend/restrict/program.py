"""From a trained network to a smaller one: measure, choose, cut, fine-tune, and look at it before and after."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_fabric import Fabric
from torch import Tensor

from coattend._files import check_target
from coattend.cooccurrence import Measure, Probe, choose_poses, contributions, operations
from coattend.data import Dataset, Split, load_data
from coattend.equivariance import equivariance_error
from coattend.export import export_safetensors
from coattend.groups import FiniteGroup
from coattend.models import EquivariantNetwork, read_model_file, save_model
from coattend.models.classifier import TrainedNetwork, recipe_of, weights_file
from coattend.nn import estimate_norm_statistics, evaluating, group_convolutions
from coattend.restrict.fine_tuning import fine_tune
from coattend.train import Recipe, RunError, load_trained
from coattend.train.batches import Examples
from coattend.train.evaluate import evaluate

ROUNDS = 9
TIMED_IMAGES = 32
TURNED_IMAGES = 8


@dataclass(frozen=True)
class Look:
    """What a network is like: test error in percent, multiply-adds of an image, parameters, errors by element."""

    name: str
    error: float
    operations: int
    parameters: int
    equivariance: dict[int, float]
    time: float  # relative to the original network


@dataclass(frozen=True)
class Restriction:
    """What was there and kept of each layer, what each relative pose contributed, and the network at each stage."""

    group: FiniteGroup
    before: dict[str, tuple[int, ...]]
    kept: dict[str, tuple[int, ...]]
    contributions: dict[str, Tensor]
    looks: tuple[Look, ...]
    written: Path


def restrict_trained(
    path: str | Path,
    to: Path,
    *,
    keep: int | None = None,
    budget: float | None = None,
    data: str | None = None,
    epochs: int = 3,
    images: int = 256,
    train_images: int | None = None,
    test_images: int | None = None,
    measure: Measure = "logits",
    seed: int = 0,
    overwrite: bool = False,
) -> Restriction:
    """Restrict the network of a run folder or file to the relative poses that contribute, and write it.

    Poses are chosen on training images; the test split is only looked at. ``data`` is by default what the network was
    trained on, ``images`` how many of it are measured on, ``epochs`` how long the cut network is trained on.
    ``train_images`` and ``test_images`` cut the splits short.
    """
    check_target(to, overwrite)
    file = weights_file(path)
    trained, recipe = load_trained(file), trained_by(file)
    source = matching_data(trained, data or recipe.data)
    train = examples(trained, source.train, train_images)
    test = examples(trained, source.test, test_images)
    network = copy.deepcopy(trained.network)
    probe = Probe.of(network, train.images[:images], train.labels[:images])
    contributed = contributions(network, probe, measure)
    kept = choose_poses(
        network,
        lambda rest, layers: contributions(rest, probe, measure, layers),
        keep=keep,
        budget=budget,
        image_shape=trained.image_shape,
    )
    network.restrict(kept)
    estimate_norm_statistics(network, train.images.split(recipe.batch))
    cut = copy.deepcopy(network)
    fine_tune(network, recipe, train, epochs, seed)
    write_certified(network, to, file)
    stages = {"before": trained.network, "cut": cut, "fine-tuned": network}
    there = {name: layer.relative for name, layer in group_convolutions(trained.network).items()}
    return Restriction(network.group, there, kept, contributed, tuple(looks(stages, test, trained.image_shape)), to)


def looks(networks: dict[str, EquivariantNetwork], test: Examples, image_shape: tuple[int, int, int]) -> list[Look]:
    """Look at networks side by side; times are measured in turns, relative to the first."""
    fabric = Fabric(accelerator="cpu", devices=1)
    times = relative_times(list(networks.values()), test.images[:TIMED_IMAGES])
    turned = test.images[:TURNED_IMAGES].double()
    return [
        Look(
            name=name,
            error=evaluate(fabric, network, test).error,
            operations=sum(operations(network, image_shape).values()),
            parameters=sum(p.numel() for p in network.parameters()),
            equivariance=equivariance_error(copy.deepcopy(network).double(), turned, network.group),
            time=seconds,
        )
        for (name, network), seconds in zip(networks.items(), times, strict=True)
    ]


def relative_times(networks: Sequence[EquivariantNetwork], images: Tensor) -> list[float]:
    """The median over rounds of each network's inference time relative to the first."""
    rounds = []
    for _ in range(ROUNDS + 1):
        seconds = []
        for network in networks:
            with evaluating(network):
                start = time.perf_counter()
                network(images)
                seconds.append(time.perf_counter() - start)
        rounds.append([s / seconds[0] for s in seconds])
    return [statistics.median(ratios) for ratios in zip(*rounds[1:], strict=True)]  # the first round warms up


def trained_by(file: Path) -> Recipe:
    """The recipe a network was trained with."""
    return Recipe.from_dict(recipe_of(file))


def matching_data(trained: TrainedNetwork, name: str) -> Dataset:
    """Data with the network's classes and image size."""
    data = load_data(name, size=trained.image_shape[1], fit=trained.fit)
    if data.image_shape != trained.image_shape or len(data.classes) != len(trained.classes):
        raise RunError(
            f"the network was trained on {len(trained.classes)} classes of images {trained.image_shape}, {data.name} "
            f"has {len(data.classes)} classes of {data.image_shape}; choose data of the same kind."
        )
    return data


def examples(trained: TrainedNetwork, split: Split, count: int | None = None) -> Examples:
    """The first ``count`` images of a split, or all, as the network sees them."""
    return Examples(trained.preprocessing.apply(split.images[:count]), split.labels[:count])


def write_certified(network: EquivariantNetwork, path: Path, origin: Path) -> None:
    """Write a network with what travelled with the one it was made from, and a certificate of its own."""
    metadata, _, extra = read_model_file(origin)
    save_model(network, path, metadata=metadata, extra_tensors=extra)
    export_safetensors(path, path, overwrite=True)
