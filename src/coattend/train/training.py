"""A run in training: epoch after epoch from the last checkpoint, or from the start, to the result."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from lightning_fabric import Fabric
from lightning_fabric.wrappers import _FabricModule
from torch import nn
from torchmetrics import MeanMetric

from coattend.data import Dataset, Preprocessing
from coattend.models import (
    EquivariantNetwork,
    exactness_line,
    group_convolutions,
    read_model_file,
    restricted,
    restricted_poses,
)
from coattend.models.classifier import Classifier
from coattend.nn.observe import estimate_norm_statistics, evaluating
from coattend.tasks import Evaluation, Task
from coattend.train.averaging import AveragedWeights, make_average
from coattend.train.batches import AnyExamples, Prepared
from coattend.train.checkpoint import DAMAGE, Checkpoint, damaged_checkpoint
from coattend.train.estimate import duration, estimated_seconds
from coattend.train.evaluate import Tested, examine, network_error
from coattend.train.history import Best, Epoch
from coattend.train.network import count_parameters
from coattend.train.optimizer import make_optimizer
from coattend.train.outcome import write_outcome
from coattend.train.processes import by_first
from coattend.train.progress import Board, TrainingProgress
from coattend.train.recipe import Recipe
from coattend.train.restriction import drop_poses, poses_due
from coattend.train.run import Result, summarize
from coattend.train.run_folder import SKIPPED, RunFolder
from coattend.train.step import check_outcome, check_weights, train_epoch

SHOWN = 10  # unreadable files that are printed


@dataclass(frozen=True)
class Training:
    """A run in training: its processes, its folder, its data and its task."""

    fabric: Fabric
    folder: RunFolder
    recipe: Recipe
    seed: int
    data: Dataset
    prepared: Prepared
    task: Task

    def run(self, network: EquivariantNetwork, title: str) -> Result:
        """Train a new network from the last checkpoint, or from the start, to the end."""
        fabric, folder, recipe, train_set = self.fabric, self.folder, self.recipe, self.prepared.train
        state = by_first(fabric, folder.load_checkpoint)
        first_epoch, best = (0, None) if state is None else (state.epoch + 1, state.best)
        try:
            network, plain_optimizer = restored(network, recipe, state)
        except DAMAGE as error:
            raise damaged_checkpoint(folder.checkpoint) from error
        model, optimizer = fabric.setup(network, plain_optimizer)
        average = self._average(network, state)
        with ExitStack() as stack:
            leads, reported = fabric.is_global_zero, 0
            progress = stack.enter_context(TrainingProgress(title, recipe.epochs, first_epoch, leads))
            for line in by_first(fabric, lambda: self._opening_lines(network, first_epoch)):
                progress.say(line)
            board = stack.enter_context(Board(folder.path / "tensorboard", first_epoch)) if leads else None
            for epoch in range(first_epoch, recipe.epochs):
                started = time.perf_counter()
                self.prepared.reset_waiting()
                keep = poses_due(recipe, network, epoch)
                if keep is not None:
                    network, plain_optimizer = drop_poses(network, plain_optimizer, recipe, train_set, keep)
                    model, optimizer = fabric.setup(network, plain_optimizer)
                    average = make_average(network, recipe)
                    best = None  # a network of another shape
                loss, accuracy = self._learn(model, network, optimizer, average, epoch, progress)
                reported = self._report_unreadable(reported, progress)
                check_weights(network, recipe, epoch)
                trained, waited = time.perf_counter() - started, self.prepared.waited
                tested, tested_model = (network, model) if average is None else (average.network, average.network)
                valid = self._validate(tested, tested_model, epoch)
                if valid is not None and (best is None or (valid.accuracy, -valid.loss) > (best.accuracy, -best.loss)):
                    best = Best(epoch, valid.accuracy, valid.loss)
                    self._save(folder.best_weights, tested)
                measured = Epoch(
                    epoch=epoch,
                    lr=optimizer.param_groups[0]["lr"],
                    train_loss=loss,
                    train_accuracy=accuracy,
                    valid_loss=None if valid is None else valid.loss,
                    valid_accuracy=None if valid is None else valid.accuracy,
                    relative_poses=_relative_poses(network) if recipe.keep_poses < 1 else None,
                    test_accuracy=self._test_accuracy(tested_model, epoch),
                    equivariance_error=self._equivariance_error(tested, epoch),
                    seconds=time.perf_counter() - started,
                    images_per_second=len(train_set) / trained,
                    waited=waited,
                    time=time.time(),
                )
                if board is not None:
                    board.add(measured)
                averaged = None if average is None else average.state_dict()
                states = network.state_dict(), optimizer.state_dict()
                checkpoint = Checkpoint(*states, epoch, best, restricted_poses(network), 0, averaged)
                by_first(fabric, partial(folder.finish_epoch, measured, checkpoint))
                progress.epoch(measured)
            if average is not None:
                return self._finish(average.network, average.network, best)
            return self._finish(network, model, best)

    def _opening_lines(self, network: EquivariantNetwork, first_epoch: int) -> list[str]:
        """Return what was read, what was left out, the network, whether it is exact, and how long it will take."""
        data, recipe = self.data, self.recipe
        lines = [data.summary()]
        if data.skipped:
            lines.append(f"left out {len(data.skipped):,} files, listed in {self.folder.path / SKIPPED}:")
            lines += [f"  {reason}" for _, reason in data.skipped[:SHOWN]]
        lines += [f"precision {recipe.precision}", exactness_line(network, data.image_shape[1:])]
        if self.fabric.world_size == 1 and first_epoch < recipe.epochs:
            images = len(self.prepared.train)
            seconds = estimated_seconds(network, data.image_shape, recipe, images)
            left = duration(seconds * (recipe.epochs - first_epoch) / recipe.epochs)
            lines.append(
                f"{count_parameters(network):,} parameters; {recipe.epochs - first_epoch} epochs of {images:,} images, "
                f"about {left} without reading and testing"
            )
        return lines

    def _report_unreadable(self, reported: int, progress: TrainingProgress) -> int:
        """Print and write which images could not be read since the last epoch; return how many there are in all."""
        failures = self.prepared.unreadable()
        if len(failures) > reported:
            progress.say(f"skipped {len(failures):,} images that became unreadable while training:")
            for failure in failures[:SHOWN]:
                progress.say(f"  {failure.reason}")
            skipped = [*self.data.skipped, *((failure.name, failure.reason) for failure in failures)]
            by_first(self.fabric, lambda: self.folder.write_skipped(skipped))
        return len(failures)

    def _average(self, network: EquivariantNetwork, state: Checkpoint | None) -> AveragedWeights | None:
        try:
            return make_average(network, self.recipe, None if state is None else state.average)
        except DAMAGE as error:
            raise damaged_checkpoint(self.folder.checkpoint) from error

    def _learn(
        self,
        model: _FabricModule,
        network: EquivariantNetwork,
        optimizer: torch.optim.Optimizer,
        average: AveragedWeights | None,
        epoch: int,
        progress: TrainingProgress,
    ) -> tuple[float, float]:
        """Train for one epoch; return loss and score on the training images as they were seen."""
        losses = MeanMetric().to(self.fabric.device)
        scores = self.task.metric().to(self.fabric.device)
        examples, recipe, task = self.prepared.train, self.recipe, self.task
        for step in train_epoch(self.fabric, model, optimizer, examples, recipe, self.seed, epoch, task):
            if average is not None:
                average.update(network)
            losses.update(step.loss, len(step.labels))
            scores.update(*task.metric_input(step.logits, step.labels))
            progress.step(epoch, step.progress, step.loss, recipe.batch)
        return float(losses.compute()), float(scores.compute())

    def _validate(self, network: EquivariantNetwork, model: nn.Module, epoch: int) -> Evaluation | None:
        """Re-estimate norms where the recipe needs it, and test on the validation images if there are any."""
        recipe, prepared = self.recipe, self.prepared
        before_a_test = recipe.is_due(epoch, recipe.test_every or recipe.epochs)
        averaged = recipe.averaging > 0
        if (before_a_test and (recipe.reestimate_norms or averaged)) or (averaged and len(prepared.valid)):
            dtype = next(network.parameters()).dtype
            with self.fabric.autocast():
                batches = (images for images, _, _ in prepared.train.in_order(0, 1, recipe.batch))
                estimate_norm_statistics(network, (images.to(dtype) for images in batches))
        return self._examine(model, prepared.valid).evaluation if len(prepared.valid) else None

    def _examine(self, model: nn.Module, examples: AnyExamples) -> Tested:
        return examine(self.fabric, model, examples, self.task)

    def _test_accuracy(self, model: nn.Module, epoch: int) -> float | None:
        due = self.recipe.is_due(epoch, self.recipe.test_every)
        return self._examine(model, self.prepared.test).evaluation.accuracy if due else None

    def _equivariance_error(self, network: EquivariantNetwork, epoch: int) -> float | None:
        due = self.recipe.is_due(epoch, self.recipe.equivariance_every)
        return network_error(network, self.prepared.test) if due else None

    def _save(self, path: Path, network: EquivariantNetwork) -> None:
        preprocessing, recipe, data = self.prepared.preprocessing, self.recipe, self.data
        by_first(self.fabric, lambda: save_weights(path, network, preprocessing, recipe, data, self.task))

    def _predictor(self, model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return a function from pixels to the outputs of the network as it is now."""

        def predict(pixels: torch.Tensor) -> torch.Tensor:
            images = self.prepared.preprocessing(pixels.to(self.fabric.device))
            with evaluating(model), self.fabric.autocast():
                return model(images.to(next(model.parameters()).dtype)).float()

        return predict

    def _finish(self, network: EquivariantNetwork, model: nn.Module, best: Best | None) -> Result:
        """Test the network after the last epoch and after the best, and write the result."""
        fabric, folder, test_set = self.fabric, self.folder, self.prepared.test
        last, valid = self._examine(model, test_set), None
        check_outcome(last.evaluation.loss, self.recipe)
        self._save(folder.last_weights, network)
        if best is not None:
            network.load_state_dict(by_first(fabric, lambda: read_model_file(folder.best_weights)[1]))
            valid = self._examine(model, test_set)

        def write() -> Result:
            write_outcome(folder, self.data, self.prepared, self.task, last, valid, self._predictor(model))
            run = replace(folder.run, recipe=self.recipe)
            errors = last.evaluation.error, None if valid is None else valid.evaluation.error
            result = summarize(run, count_parameters(network), folder.history(), *errors, best)
            folder.finish(result)
            return result

        return by_first(fabric, write)


def restored(
    network: EquivariantNetwork, recipe: Recipe, state: Checkpoint | None
) -> tuple[EquivariantNetwork, torch.optim.Optimizer]:
    """Return the network and the recipe's optimizer as they were when the state was saved, or new without a state."""
    if recipe.precision == "64-true":
        network = network.double()  # before the state is read, which float32 would round
    if state is None:
        return network, make_optimizer(network, recipe)
    network = restricted(network, state.relative)
    optimizer = make_optimizer(network, recipe)
    network.load_state_dict(dict(state.model))
    optimizer.load_state_dict(dict(state.optimizer))
    return network, optimizer


def save_weights(
    path: Path,
    network: EquivariantNetwork,
    preprocessing: Preprocessing,
    recipe: Recipe,
    data: Dataset,
    task: Task | None = None,
) -> None:
    """Write the network with its preprocessing, classes, task and recipe."""
    metadata = {"recipe": json.dumps(recipe.to_dict())}
    facts = (data.classes, data.image_shape, data.provenance, recipe.fit, metadata, task)
    Classifier(network, preprocessing, *facts).save(path)


def _relative_poses(network: EquivariantNetwork) -> int:
    """The number of relative poses of all group convolutions."""
    return sum(len(layer.relative) for layer in group_convolutions(network).values())
