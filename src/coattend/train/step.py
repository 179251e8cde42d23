"""The training step, for training and fine-tuning."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from lightning_fabric import Fabric
from lightning_fabric.wrappers import _FabricModule
from torch import Tensor, nn

from coattend.data import make_augmentation
from coattend.models.records import RunError
from coattend.nn import GroupBatchNorm2d
from coattend.nn.observe import Call, recording
from coattend.tasks import Classification, Task
from coattend.train.batches import AnyExamples, hash_seed, shuffled_batches
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
    examples: AnyExamples,
    recipe: Recipe,
    seed: int,
    epoch: int,
    task: Task | None = None,
) -> Iterator[Step]:
    """Train for one epoch of the recipe, and yield every step after it is done.

    Order, augmentation and dropout are drawn from seed and epoch alone. Raises RunError if the training diverges. The
    task is by default classification.
    """
    task = Classification(()) if task is None else task
    rank, world = fabric.global_rank, fabric.world_size
    augment = make_augmentation(recipe.augmentation)
    torch.manual_seed(hash_seed(seed, epoch, 1 + rank))
    generator = torch.Generator(fabric.device).manual_seed(hash_seed(seed, epoch, 500 + rank))
    steps = -(-len(examples) // recipe.batch)
    model.train()
    balanced = recipe.sampling == "balanced"
    batches = shuffled_batches(examples, recipe.batch, seed, epoch, rank, world, balanced)
    for number, (images, labels, joint) in enumerate(batches):
        step = epoch * steps + number
        set_learning_rate(optimizer, recipe.learning_rate_factor(step, recipe.epochs * steps))
        images, labels = task.augmented(augment, images, labels, generator)
        logits = model(images)
        summed = task.loss(logits, labels, recipe.label_smoothing)
        # The joint loss: all processes stop at the same step, as one would.
        check_loss(total(fabric, summed) / joint, recipe, step, epoch, model.module, images)
        optimizer.zero_grad(set_to_none=True)
        # Gradients are averaged over processes: so weighted, they are those of the joint batch's mean loss.
        fabric.backward(summed * world / joint)
        if recipe.clip_gradients is not None:
            fabric.clip_gradients(model, optimizer, max_norm=recipe.clip_gradients)
        optimizer.step()
        yield Step((number + 1) / steps, summed.item() / len(labels), logits.detach(), labels)


def check_loss(loss: float, recipe: Recipe, step: int, epoch: int, model: nn.Module, batch: Tensor) -> None:
    """Raise if the loss is not finite or above the recipe's limit."""
    if math.isfinite(loss) and loss <= recipe.explode:
        return
    GroupBatchNorm2d.convert_sync_batchnorm(model, False)  # this process alone runs the batch again; the run ends here
    name, size = largest_activation(model, batch)
    raise diverged(
        f"the loss is {loss:g} at step {step} (epoch {epoch}), the largest activation is {size:.3g}, in {name}",
        recipe,
    )


def check_weights(model: nn.Module, recipe: Recipe, epoch: int) -> None:
    """Raise if weights or buffers are not finite."""
    for name, tensor in model.state_dict().items():
        if not torch.isfinite(tensor).all():
            raise diverged(f"{name} is not finite after epoch {epoch}", recipe)


def check_outcome(loss: float, recipe: Recipe) -> None:
    """Raise if the test loss is not finite."""
    if not math.isfinite(loss):
        raise diverged(f"the test loss is {loss:g}", recipe)


def diverged(event: str, recipe: Recipe) -> RunError:
    """Return the error, with remedies that the recipe does not have yet."""
    remedies = [f"lower the learning rate (--set lr={recipe.lr / 10:g})"]
    if recipe.clip_gradients is None:
        remedies.append("clip gradients (--set clip_gradients=1)")
    if recipe.clip is None:
        remedies.append("clip inputs as the paper did (--set clip=2.3)")
    return RunError(f"training diverged: {event}. To prevent it, {' or '.join(remedies)}.")


def largest_activation(model: nn.Module, batch: Tensor) -> tuple[str, float]:
    """Return the layer whose output is largest in magnitude, NaN counting as infinite."""

    def size(call: Call) -> tuple[str, float] | None:
        if not isinstance(call.output, Tensor):
            return None
        return call.name, torch.nan_to_num(call.output.abs().max().float(), nan=math.inf).item()

    leaves = {name: module for name, module in model.named_modules() if next(module.children(), None) is None}
    with torch.no_grad(), recording(model, size, leaves) as sizes:
        model(batch)
    return max(sizes, key=lambda item: item[1])
