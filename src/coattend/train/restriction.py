"""Networks with fewer relative poses: restriction of a trained network, and of a network while it is trained."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import Optimizer

from coattend._files import check_target
from coattend._timing import compared, inference, interleaved
from coattend.data import Dataset, load_data
from coattend.data.dataset import AnySplit
from coattend.data.rotated_mnist import current_name
from coattend.equivariance import equivariance_error
from coattend.export.safetensors import write_safetensors
from coattend.groups import FiniteGroup
from coattend.models import (
    EquivariantNetwork,
    Measure,
    Probe,
    choose_poses,
    contributions,
    group_convolutions,
    restricted,
)
from coattend.models.classifier import Classifier, load_trained, weights_file
from coattend.models.records import RunError, read_header_recipe
from coattend.models.restriction import RelativePoses
from coattend.nn.observe import estimate_norm_statistics, multiply_adds
from coattend.train.batches import AnyExamples, Examples
from coattend.train.evaluate import evaluate
from coattend.train.optimizer import make_optimizer
from coattend.train.recipe import Recipe
from coattend.train.step import train_epoch

FINE_TUNING_RATE = 0.3  # relative to the recipe's learning rate, since the weights are trained already
MEASURED_IMAGES = 256
TIMED_IMAGES = 32
TIMED_ROUNDS = 9
TRANSFORMED_IMAGES = 8


@dataclass(frozen=True)
class Stage:
    """Figures of a network at one stage of its restriction."""

    name: str
    error: float  # percent of the test images
    multiply_adds: int  # per image
    parameters: int
    equivariance: dict[int, float]  # relative error by group element
    time: float  # of inference, relative to the first stage


@dataclass(frozen=True)
class Restriction:
    """Result of a restriction: poses before and after by layer, contributions, stages, and the file of the network."""

    group: FiniteGroup
    before: RelativePoses
    after: RelativePoses
    contributions: dict[str, Tensor]
    stages: tuple[Stage, ...]
    path: Path


def restrict_trained(
    path: str | Path,
    to: Path,
    *,
    keep: int | None = None,
    budget: float | None = None,
    data: str | None = None,
    epochs: int = 3,
    images: int = MEASURED_IMAGES,
    train_images: int | None = None,
    test_images: int | None = None,
    measure: Measure = "logits",
    seed: int = 0,
    overwrite: bool = False,
) -> Restriction:
    """Restrict the network of a run folder or file to the relative poses that contribute most, and save it.

    Poses are chosen on training images; the test split is used for the figures only. ``data`` is by default what the
    network was trained on, ``images`` the number of training images used to measure contributions, ``epochs`` the
    length of the fine-tuning. ``train_images`` and ``test_images`` limit the splits.
    """
    check_target(to, overwrite)
    file = weights_file(path)
    trained = load_trained(file)
    if trained.task.name != "classification":
        raise RunError(f"restrict measures contributions to classes of images, and {file} is for {trained.task.name}.")
    recipe = Recipe.from_dict(read_header_recipe(file, trained.metadata))
    source = matching_data(trained, data or current_name(recipe.data, trained.provenance))
    train = examples(trained, source.train, train_images)
    test = examples(trained, source.test, test_images)
    original = trained.network
    probe = Probe.of(original, train.images[:images], train.labels[:images])
    contributed = contributions(original, probe, measure)
    poses = choose_poses(
        original,
        lambda network, layers: contributions(network, probe, measure, layers),
        keep=keep,
        budget=budget,
        image_shape=trained.image_shape,
    )
    smaller = restricted(trained, {f"network.{name}": relative for name, relative in poses.items()})
    network = smaller.network
    estimate_norm_statistics(network, train.images.split(recipe.batch))
    before_tuning = copy.deepcopy(network)
    fine_tune(network, recipe, train, epochs, seed)
    write_safetensors(smaller.eval(), to, source=file, overwrite=overwrite)
    networks = {"before": original, "restricted": before_tuning, "fine-tuned": network}
    return Restriction(
        group=network.group,
        before={name: layer.relative for name, layer in group_convolutions(original).items()},
        after=poses,
        contributions=contributed,
        stages=tuple(_stages(networks, test, trained.image_shape)),
        path=to,
    )


def fine_tune(network: EquivariantNetwork, recipe: Recipe, examples: Examples, epochs: int, seed: int = 0) -> None:
    """Continue the training of a network by its recipe for some epochs, with one falling learning rate.

    The same seed gives the same weights. The state is in memory only: a fine-tuning that is stopped starts again.
    """
    recipe = replace(recipe, lr=recipe.lr * FINE_TUNING_RATE, schedule="one-cycle", warmup=0.1, epochs=max(1, epochs))
    fabric = Fabric(accelerator="cpu", devices=1)
    model, optimizer = fabric.setup(network, make_optimizer(network, recipe))
    for epoch in range(epochs):
        for _ in train_epoch(fabric, model, optimizer, examples, recipe, seed, epoch):
            pass
    network.eval()


def poses_due(recipe: Recipe, network: EquivariantNetwork, epoch: int) -> int | None:
    """Return the number of relative poses that layers are restricted to before this epoch; None if nothing changes.

    Each fraction of the recipe's ``drop_poses_at`` that has passed removes an equal part of the poses to remove.
    """
    order = network.group.order
    passed = sum(epoch >= moment * recipe.epochs for moment in recipe.drop_poses_at)
    share = 1 - (1 - recipe.keep_poses) * passed / max(1, len(recipe.drop_poses_at))
    keep = max(1, round(share * order))
    most = max((len(layer.relative) for layer in group_convolutions(network).values()), default=0)
    return keep if most > keep else None


def drop_poses(
    network: EquivariantNetwork, optimizer: Optimizer, recipe: Recipe, examples: AnyExamples, keep: int
) -> tuple[EquivariantNetwork, Optimizer]:
    """Return a copy of a network with the ``keep`` poses that contribute most in every layer, and its optimizer."""
    measured = examples.head(MEASURED_IMAGES)
    probe = Probe.of(network, measured.images, measured.labels)
    poses = choose_poses(network, lambda net, layers: contributions(net, probe, layers=layers), keep=keep)
    smaller = restricted(network, poses)
    return smaller, restricted_optimizer(optimizer, network, smaller, recipe)


def restricted_optimizer(
    optimizer: Optimizer, before: EquivariantNetwork, after: EquivariantNetwork, recipe: Recipe
) -> Optimizer:
    """Return the recipe's optimizer for a restricted network, with the state of the network before the restriction.

    State is carried over by the names of parameters. Tensors in the shape of their parameter (momentum, the moments of
    Adam) are restricted as the parameter was; other state (step counts) is copied.
    """
    poses = {name: layer.relative for name, layer in group_convolutions(after).items()}
    parameters = dict(before.named_parameters())
    states: dict[str, dict[str, object]] = {name: dict(optimizer.state.get(p, {})) for name, p in parameters.items()}
    for key in {key: None for state in states.values() for key in state}:
        tensors = {
            name: value
            for name, state in states.items()
            if isinstance(value := state.get(key), Tensor) and value.shape == parameters[name].shape
        }
        for name, value in _restricted_values(before, tensors, poses).items():
            states[name][key] = value
    result = make_optimizer(after, recipe)
    result.state.update({p: copy.deepcopy(states[name]) for name, p in after.named_parameters() if states[name]})
    return result


def _restricted_values(network: nn.Module, values: Mapping[str, Tensor], poses: RelativePoses) -> dict[str, Tensor]:
    """Restrict tensors in the shape of the network's parameters as the parameters would be.

    The tensors replace the parameters in a copy of the network, which is then restricted.
    """
    carrier = copy.deepcopy(network)
    with torch.no_grad():
        for name, value in values.items():
            carrier.get_parameter(name).copy_(value)
    return {name: p.detach() for name, p in restricted(carrier, poses).named_parameters() if name in values}


def matching_data(trained: Classifier, name: str) -> Dataset:
    """Load data with the network's classes and image size."""
    data = load_data(name, size=trained.image_shape[1], fit=trained.fit)
    if data.image_shape != trained.image_shape or len(data.classes) != len(trained.classes):
        raise RunError(
            f"the network was trained on {len(trained.classes)} classes of images {trained.image_shape}, {data.name} "
            f"has {len(data.classes)} classes of {data.image_shape}; choose data of the same kind."
        )
    return data


def examples(trained: Classifier, split: AnySplit, count: int | None = None) -> Examples:
    """Return the first ``count`` images of a split, or all, preprocessed for the network."""
    chosen = split.head(count).in_memory()
    return Examples(trained.preprocessing(chosen.images), chosen.labels)


def _stages(
    networks: Mapping[str, EquivariantNetwork], test: Examples, image_shape: tuple[int, int, int]
) -> list[Stage]:
    fabric = Fabric(accelerator="cpu", devices=1)
    timed = test.images[:TIMED_IMAGES]
    seconds = interleaved({name: inference(network, timed) for name, network in networks.items()}, TIMED_ROUNDS)
    first = next(iter(seconds.values()))
    images = test.images[:TRANSFORMED_IMAGES].double()
    return [
        Stage(
            name=name,
            error=evaluate(fabric, network, test).error,
            multiply_adds=sum(multiply_adds(network, image_shape).values()),
            parameters=sum(p.numel() for p in network.parameters()),
            equivariance=equivariance_error(copy.deepcopy(network).double(), images, network.group),
            time=compared("inference", name, seconds[name], first).ratio,
        )
        for name, network in networks.items()
    ]
