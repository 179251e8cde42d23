"""The training step, for training and fine-tuning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from lightning_fabric.wrappers import _FabricModule
from torch import Tensor

from coattend.data import make_augmentation
from coattend.train.batches import Examples, hash_seed, shuffled_batches
from coattend.train.divergence import check_loss
from coattend.train.optimizer import set_learning_rate
from coattend.train.processes import total
from coattend.train.recipe import Recipe


@dataclass(frozen=True)
class Step:
    """What one step computed on this process's share of the batch.

    - progress: the fraction of the epoch's steps that are done
    - loss: the mean over the share
    """

    progress: float
    loss: float
    logits: Tensor
    labels: Tensor


def train_epoch(
    fabric: Fabric,
    model: _FabricModule,
    optimizer: torch.optim.Optimizer,
    examples: Examples,
    recipe: Recipe,
    seed: int,
    epoch: int,
) -> Iterator[Step]:
    """Train for one epoch of the recipe, and yield every step after it is done.

    Order, augmentation and dropout are drawn from seed and epoch alone. Raises RunError if the training diverges.
    """
    rank, world = fabric.global_rank, fabric.world_size
    augment = make_augmentation(recipe.augmentation)
    torch.manual_seed(hash_seed(seed, epoch, 1 + rank))
    generator = torch.Generator(fabric.device).manual_seed(hash_seed(seed, epoch, 500 + rank))
    steps = -(-len(examples) // recipe.batch)
    model.train()
    batches = shuffled_batches(examples, recipe.batch, seed, epoch, rank, world)
    for number, (images, labels, joint) in enumerate(batches):
        step = epoch * steps + number
        set_learning_rate(optimizer, recipe.learning_rate_factor(step, recipe.epochs * steps))
        images = augment(images, generator)
        logits = model(images)
        summed = F.cross_entropy(logits.float(), labels, reduction="sum", label_smoothing=recipe.label_smoothing)
        # The joint loss: all processes stop at the same step, as one would.
        check_loss(total(fabric, summed) / joint, recipe, step, epoch, model.module, images)
        optimizer.zero_grad(set_to_none=True)
        # Gradients are averaged over processes: so weighted, they are those of the joint batch's mean loss.
        fabric.backward(summed * world / joint)
        if recipe.clip_gradients is not None:
            fabric.clip_gradients(model, optimizer, max_norm=recipe.clip_gradients)
        optimizer.step()
        yield Step((number + 1) / steps, summed.item() / len(labels), logits.detach(), labels)
