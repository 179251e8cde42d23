"""Divergence: detect it, name the layer, and suggest what prevents it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from coattend.models.records import RunError
from coattend.nn import GroupBatchNorm2d
from coattend.nn.observe import Call, recording
from coattend.train.recipe import Recipe


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
