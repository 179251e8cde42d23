"""Predictions on a split, shared among the processes, and what they amount to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor, nn

from coattend.equivariance import equivariance_error
from coattend.groups import FiniteGroup, get_group
from coattend.models import EquivariantNetwork
from coattend.nn import evaluating
from coattend.train.batches import Examples

BATCH = 500


@dataclass(frozen=True)
class Evaluation:
    """Predicted classes of a whole split with their probabilities, how many are right, and the mean loss."""

    predictions: Tensor
    confidences: Tensor
    correct: int
    loss: float

    @property
    def accuracy(self) -> float:
        """Share of images that are classified rightly."""
        return self.correct / len(self.predictions)

    @property
    def error(self) -> float:
        """Percent of images that are misclassified."""
        return 100 * (len(self.predictions) - self.correct) / len(self.predictions)


def evaluate(fabric: Fabric, model: nn.Module, examples: Examples) -> Evaluation:
    """Classify a split; each process takes a part, all get the whole result."""
    logits = []
    with evaluating(model), fabric.autocast():
        images = examples.images.tensor_split(fabric.world_size)[fabric.global_rank]
        for batch in images.split(BATCH):
            logits.append(model(batch).float())
    gathered = _gathered(fabric, torch.cat(logits))
    predictions = gathered.argmax(1)
    correct = int((predictions == examples.labels).sum())  # counted, not averaged: errors stay exact fractions
    loss = F.cross_entropy(gathered.double(), examples.labels)
    confidences = gathered.double().softmax(1).amax(1)
    return Evaluation(predictions.cpu(), confidences.cpu(), correct, loss.item())


def tested_group(network: EquivariantNetwork) -> FiniteGroup:
    """The group that a network's equivariance is measured over."""
    return network.group if network.group.order > 1 else get_group("p4")


def network_error(network: EquivariantNetwork, examples: Examples) -> float:
    """The largest equivariance error over the network's group (p4 for plain networks) on a few images."""
    group = tested_group(network)
    images = examples.images[:8].to(next(network.parameters()).dtype)
    return max(equivariance_error(network, images, group).values())


def _gathered(fabric: Fabric, mine: Tensor) -> Tensor:
    if fabric.world_size == 1:
        return mine
    counts = fabric.all_gather(torch.tensor(len(mine), device=mine.device))
    assert isinstance(counts, Tensor)
    lengths = [int(n) for n in counts]
    everyone = fabric.all_gather(F.pad(mine, (0, 0, 0, max(lengths) - len(mine))))
    return torch.cat([part[:length] for part, length in zip(everyone, lengths, strict=True)])
