"""Whether a network is exactly equivariant at an image size, measured on a copy with generic weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coattend.equivariance.error import tensors_in
from coattend.equivariance.fields import FOLDS, Field, candidate_fields, other_layouts
from coattend.groups import FiniteGroup
from coattend.nn import AttentionLayer, GroupBatchNorm2d, PoseConv2d, RestrictGroup
from coattend.nn.checks import SizeError
from coattend.nn.observe import estimate_norm_statistics, evaluating

IMAGES = 2
TOLERANCE = 1e-10  # relative to the difference between images; rounding in float64 amounts to about 1e-14
LEAST_SPREAD = 1e-4  # smaller differences between images, relative to the outputs, cannot be measured
DRAWS = 5  # with some weights a narrow network has constant outputs
PERTURBATION = 0.3  # relative to the scale of a parameter


@dataclass(frozen=True)
class Exactness:
    """Whether a model was shown to be exact at a size, and the reason if it was not.

    ``size_matters``: the model was measured and did not commute, so that it may at another size.
    """

    proven: bool
    reason: str = ""
    size_matters: bool = False


def is_exact(model: nn.Module, size: int | tuple[int, int]) -> bool:
    """Measure whether the model commutes exactly with its group for images of this size.

    ``size`` is a number of pixels or (height, width). A copy of the model in float64 gets generic values for all
    parameters and norm statistics, so that no parameter that happens to be zero hides a fault, and is run on random
    images and on these images moved. True means that it commutes up to rounding (1e-10) with the generators of every
    group among its layers, and so with every element; of groups that a :class:`RestrictGroup` restricts, with those of
    the subgroup. The result holds for other weights, too. The model, its mode and
    the state of torch's random generator do not change. The cost is that of a few passes of two images in float64.

    False means "not shown": the model does not commute, it has filters that turn by other angles than quarter turns
    (C8, D6), attention that is not equivariant, no layer over a group, outputs that are constant or not finite, or it
    refuses images of this size or cannot be run in float64.
    :func:`coattend.diagnose` finds the layer. A network over the trivial group is exact, because there is nothing to
    commute with, and invariant to nothing.
    """
    return exactness(model, size).proven


def exactness(model: nn.Module, size: int | tuple[int, int]) -> Exactness:
    """Return what :func:`is_exact` returns, with the reason."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"is_exact expects a torch.nn.Module, got {type(model).__name__}.")
    height, width = _height_and_width(size)
    groups = remaining_groups(model)
    in_channels = in_channels_of(model)
    if not groups:
        return Exactness(False, "no layer of it is built over a group")
    acting = [group for group in groups if group.order > 1]
    for group in acting:
        if not group.is_exact:
            exact = f"{len(group.exact_elements)} exact elements of {group.order}"
            return Exactness(False, f"{group.name} has {exact}, the others are approximate")
    for layer in model.modules():
        if isinstance(layer, AttentionLayer) and not layer.is_equivariant:
            return Exactness(False, f"{layer} does not commute with {layer.group.name}")
    if not acting:
        return Exactness(True)
    if any(tensor.is_meta for tensor in model.state_dict().values()):
        raise ValueError(
            "is_exact measures the model, and on the meta device there is nothing to measure; load it first."
        )
    if not all(tensor.isfinite().all() for tensor in model.state_dict().values()):
        return Exactness(False, "its weights are not finite")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            for _ in range(DRAWS):
                images = _normal((IMAGES, in_channels, height, width), _device(model))
                result = _measured(generic_copy(model, images), images, acting)
                if result.proven or result.size_matters:
                    break
            return result
        except SizeError as error:
            return Exactness(False, str(error).rstrip("."), size_matters=True)
        except (RuntimeError, TypeError) as error:
            return Exactness(False, f"its copy in float64 cannot be run on these images ({str(error).splitlines()[0]})")


def remaining_groups(model: nn.Module) -> list[FiniteGroup]:
    """Return the groups that the layers of a model are built over, without those that it restricts to subgroups."""
    restrictions = [m for m in model.modules() if isinstance(m, RestrictGroup)]
    restricted = {m.group for m in restrictions if m.to_group != m.group}
    groups = [m.group for m in model.modules() if isinstance(m, PoseConv2d)] + [m.to_group for m in restrictions]
    return [group for group in dict.fromkeys(groups) if group not in restricted]


def _height_and_width(size: object) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int) else size
    if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(type(n) is int and n > 0 for n in pair):
        raise ValueError(f"size must be a positive number of pixels or a pair (height, width) of them, got {size!r}.")
    return pair[0], pair[1]


def generic_copy(model: nn.Module, images: Tensor) -> nn.Module:
    """Return the model in float64 with generic weights: no zeros, no equal statistics."""
    computed = {id(t): t.detach() for m in model.modules() for t in vars(m).values() if isinstance(t, Tensor)}
    # Pruning sets tensors with a history, which deepcopy refuses to copy.
    copied = copy.deepcopy(model, computed).to(device=images.device, dtype=torch.float64)
    GroupBatchNorm2d.convert_sync_batchnorm(copied, False)  # other processes do not take part
    with torch.no_grad():
        for name, parameter in copied.named_parameters():
            _make_generic(name, parameter)
        estimate_norm_statistics(copied, [images])  # activations of moderate size in every layer
        for module in copied.modules():
            mean, variance = getattr(module, "running_mean", None), getattr(module, "running_var", None)
            if isinstance(mean, Tensor) and isinstance(variance, Tensor):
                mean.add_(PERTURBATION * variance.sqrt() * _normal(mean.shape, mean.device))
                variance.mul_(torch.exp(PERTURBATION * _normal(variance.shape, variance.device)))
    return copied


def _make_generic(name: str, parameter: Tensor) -> None:
    """Scale weights so that activations keep their size from layer to layer, and add noise to every value."""
    noise = _normal(parameter.shape, parameter.device)
    size = parameter.square().mean().sqrt()
    if parameter.ndim >= 2:
        proper = math.sqrt(2 * len(parameter) / parameter.numel())
        parameter.mul_(torch.where(size > 0, proper / size, 0))
        parameter.add_(proper * torch.where(size > 0, PERTURBATION, 1) * noise)
    elif name.endswith("bias"):
        parameter.copy_(PERTURBATION * noise)
    else:
        parameter.add_(PERTURBATION * torch.where(size > 0, size, 1) * noise)


def _device(model: nn.Module) -> torch.device:
    """Return the device of the model, or the CPU if float64 is not available there."""
    device = next(model.parameters()).device
    return device if device.type in ("cpu", "cuda") else torch.device("cpu")


def _normal(shape: Sequence[int], device: torch.device) -> Tensor:
    """Return normal numbers from the generator of the CPU, equal on every device."""
    return torch.randn(tuple(shape), dtype=torch.float64).to(device)


def _measured(model: nn.Module, images: Tensor, groups: Sequence[FiniteGroup]) -> Exactness:
    with evaluating(model):
        outputs = list(tensors_in(model(images)))
        spreads = [_spread(y) for y in outputs]
        if not outputs or not all(spread is not None for spread in spreads):
            return Exactness(False, "an output is constant, not finite or has no batch axis, which shows nothing")
        for group in groups:
            others = other_layouts(model, None, group)
            readings = [
                [field for field in candidate_fields(y, group, others) if field.kind not in FOLDS] for y in outputs
            ]
            for g in _generators(group):
                moved = list(tensors_in(model(Field("image").move(images, group, g))))
                for i, (y, spread) in enumerate(zip(outputs, spreads, strict=True)):
                    assert spread is not None
                    errors = {field: _difference(moved[i], field.move(y, group, g)) / spread for field in readings[i]}
                    readings[i] = [field for field, error in errors.items() if error <= TOLERANCE]
                    if not readings[i]:
                        worst = f": error {min(errors.values()):.1e}" if errors else ""
                        element = f"{group.name}, {group.describe(g)}"
                        return Exactness(False, f"it does not commute with {element}{worst}", size_matters=True)
    return Exactness(True)


def _generators(group: FiniteGroup) -> list[int]:
    """Return a few elements that generate the group: what commutes with them commutes with all."""
    generators: list[int] = []
    for g in group.elements:
        if g not in group.generate(generators):
            generators.append(g)
    return generators


def _spread(y: Tensor) -> float | None:
    """Return how much an output differs between images, or None if it does not."""
    if y.ndim == 0 or len(y) != IMAGES or not y.is_floating_point() or not y.isfinite().all():
        return None
    spread = torch.linalg.vector_norm(y - y.mean(0, keepdim=True)).item()
    return spread if spread > LEAST_SPREAD * torch.linalg.vector_norm(y).item() else None


def _difference(actual: Tensor, expected: Tensor) -> float:
    if actual.shape != expected.shape:
        return float("inf")
    return torch.linalg.vector_norm(actual - expected).item()


def in_channels_of(model: nn.Module) -> int:
    """Return how many channels the images of a network have: its ``in_channels``, or those of its first convolution."""
    layers = (m for m in model.modules() if isinstance(m, (PoseConv2d, nn.Conv2d)))
    channels = getattr(model, "in_channels", getattr(next(layers, None), "in_channels", None))
    if not isinstance(channels, int):
        raise ValueError("is_exact needs a model with a convolution, to know how many channels its images have.")
    return channels
