"""How much each relative pose of each group convolution contributes.

The output of a layer is a sum over relative poses, ``y = sum_t y_t + b``, where y_t needs slice t of the filter alone.
All measures put a number on y_t; the larger, the more is lost without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from coattend.nn import CoAttention, PoseConv2d, attention_masks, evaluating, group_convolutions

Measure = Literal["logits", "loss", "gradient", "responses", "weights"]
Contributions = dict[str, Tensor]
Layers = Mapping[str, PoseConv2d]
BATCH = 128


@dataclass(frozen=True)
class Probe:
    """What contributions are measured on: images, labels, and the logits of the network before anything was cut."""

    images: Tensor
    labels: Tensor
    logits: Tensor

    @staticmethod
    def of(network: nn.Module, images: Tensor, labels: Tensor) -> Probe:
        """With the logits of a network as it is."""
        if not len(images) or len(images) != len(labels):
            raise ValueError(f"expected images and as many labels, at least one, got {len(images)} and {len(labels)}.")
        with _evaluating_with_batch_statistics(network):
            return Probe(images, labels, _logits(network, images))

    def distance(self, network: nn.Module) -> Tensor:
        """How far a network's logits are from those before, on average and squared."""
        return (_logits(network, self.images) - self.logits).square().mean()

    def loss(self, network: nn.Module) -> Tensor:
        """Mean cross-entropy."""
        return F.cross_entropy(_logits(network, self.images), self.labels.cpu())


def contributions(
    network: nn.Module, probe: Probe, measure: Measure = "logits", layers: Iterable[str] | None = None
) -> Contributions:
    """What every relative pose of every group convolution, or of ``layers``, contributes: ``{layer: (|T|,)}``.

    - "logits": how far the logits move away from those before anything was cut if the slice is taken out; squared
    - "loss": by how much the mean cross-entropy rises if the slice is taken out
    - "gradient": the first-order estimate of that, ``sum W dL/dW`` over the slice, its root mean square over batches
    - "responses": the energy of y_t behind the layer's attention, ``E[(mask y_t)^2]``
    - "weights": ``sum W_t^2``, without data

    For the first three, norms take their statistics from the batch: what they would adapt to anyway does not count.
    """
    if measure not in MEASURES:
        raise ValueError(f"measure must be one of {', '.join(MEASURES)}, got {measure!r}.")
    every = group_convolutions(network)
    chosen = every if layers is None else {name: every[name] for name in layers}
    return MEASURES[measure](network, chosen, probe)


def by_logits(network: nn.Module, layers: Layers, probe: Probe) -> Contributions:
    """How far the logits move when a slice is taken out."""
    return _without_each(network, layers, probe.distance)


def by_loss(network: nn.Module, layers: Layers, probe: Probe) -> Contributions:
    """The rise of the loss when a slice is taken out."""
    with _evaluating_with_batch_statistics(network):
        whole = probe.loss(network)
    return {name: losses - whole for name, losses in _without_each(network, layers, probe.loss).items()}


def by_gradient(network: nn.Module, layers: Layers, probe: Probe) -> Contributions:
    """The first-order change of the loss when a slice is taken out."""
    squares = {name: torch.zeros(len(layer.relative), dtype=torch.float64) for name, layer in layers.items()}
    batches = list(zip(probe.images.split(BATCH // 8), probe.labels.split(BATCH // 8), strict=True))
    weights = [layer.weight for layer in layers.values()]
    with _evaluating_with_batch_statistics(network), torch.enable_grad():
        for batch, targets in batches:
            gradients = torch.autograd.grad(F.cross_entropy(network(batch), targets), weights)
            for name, weight, gradient in zip(layers, weights, gradients, strict=True):
                squares[name] += (weight * gradient).sum(dim=(0, 1, 3, 4)).double().cpu().square()
    return {name: (total / len(batches)).sqrt() for name, total in squares.items()}


def by_responses(network: nn.Module, layers: Layers, probe: Probe) -> Contributions:
    """The energy of each slice's responses, as far as attention lets them pass."""
    energy = {name: torch.zeros(len(layer.relative), dtype=torch.float64) for name, layer in layers.items()}
    seen: dict[str, Tensor] = {}

    def remember(name: str, _: nn.Module, inputs: Any) -> None:
        seen[name] = inputs[0]

    for batch in probe.images.split(BATCH):
        handles = [layer.register_forward_pre_hook(partial(remember, name)) for name, layer in layers.items()]
        try:
            masks = attention_masks(network, batch)
        finally:
            for handle in handles:
                handle.remove()
        with torch.no_grad():
            for name, layer in layers.items():
                mask = masks.get(_attention_behind(network, name))
                for place in _slices(layer):
                    alone = _alone(layer, place, seen[name])
                    passed = alone * mask if mask is not None and mask.shape == alone.shape else alone
                    energy[name][place] += passed.double().square().sum().cpu() / len(probe.images)
    return energy


def by_weights(network: nn.Module, layers: Layers, probe: Probe) -> Contributions:
    """The squared norm of each slice's weights."""
    return {name: layer.weight.detach().double().square().sum(dim=(0, 1, 3, 4)).cpu() for name, layer in layers.items()}


MEASURES: dict[str, Callable[[nn.Module, Layers, Probe], Contributions]] = {
    "logits": by_logits,
    "loss": by_loss,
    "gradient": by_gradient,
    "responses": by_responses,
    "weights": by_weights,
}


def _slices(layer: PoseConv2d) -> range:
    return range(len(layer.relative))


def _logits(network: nn.Module, images: Tensor) -> Tensor:
    return torch.cat([network(batch).double().cpu() for batch in images.split(BATCH)])


def _without_each(network: nn.Module, layers: Layers, found: Callable[[nn.Module], Tensor]) -> Contributions:
    """What is found of the network without each slice in turn."""
    values: Contributions = {}
    with _evaluating_with_batch_statistics(network):
        for name, layer in layers.items():
            alone = []
            for place in _slices(layer):
                with _only(layer, [other for other in _slices(layer) if other != place]):
                    alone.append(found(network))
            values[name] = torch.stack(alone)
    return values


def _alone(layer: PoseConv2d, place: int, x: Tensor) -> Tensor:
    """What one slice adds to the layer's output."""
    with _only(layer, [place]):
        y: Tensor = layer(x)
    return y if layer.bias is None else y - layer.bias[:, None, None, None]


@contextmanager
def _only(layer: PoseConv2d, places: list[int]) -> Iterator[None]:
    """Zero for all other slices; attention lets zeros pass as zeros."""
    weights = layer.weight.detach().clone()
    with torch.no_grad():
        kept = weights[:, :, places]
        layer.weight.zero_()
        layer.weight[:, :, places] = kept
    try:
        yield
    finally:
        with torch.no_grad():
            layer.weight.copy_(weights)


def _attention_behind(network: nn.Module, name: str) -> str:
    """The name of the attention that follows a convolution, or one that does not exist."""
    parent = name.rpartition(".")[0]
    sibling = f"{parent}.attention" if parent else "attention"
    is_there = isinstance(getattr(network.get_submodule(parent), "attention", None), CoAttention)
    return sibling if is_there else ""


@contextmanager
def _evaluating_with_batch_statistics(network: nn.Module) -> Iterator[None]:
    """Dropout is off, norms normalise each batch by itself; afterwards the network is as before."""
    norms = [m for m in network.modules() if isinstance(m, _BatchNorm)]
    with evaluating(network):
        tracked = [(norm, norm.running_mean, norm.running_var) for norm in norms]
        for norm in norms:
            norm.running_mean = norm.running_var = None  # torch's way to ask for the statistics of the batch
        try:
            yield
        finally:
            for norm, mean, variance in tracked:
                norm.running_mean, norm.running_var = mean, variance
