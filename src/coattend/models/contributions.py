"""Contribution of every relative pose of every group convolution.

The output of a layer is a sum over relative poses, ``y = sum_t y_t + b``, where y_t needs slice t of the filter alone.
A measure maps y_t to a number; the larger it is, the more is lost without slice t.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from coattend.models.restriction import group_convolutions
from coattend.nn import PoseConv2d
from coattend.nn.observe import Call, attended_convolutions, attention_masks, evaluating, recording

Measure = Literal["logits", "loss", "gradient", "responses", "weights"]
Contributions = dict[str, Tensor]
Layers = Mapping[str, PoseConv2d]
BATCH = 128


@dataclass(frozen=True)
class Probe:
    """Images and labels on which contributions are measured, and the logits of the unrestricted network for them."""

    images: Tensor
    labels: Tensor
    logits: Tensor

    @staticmethod
    def of(network: nn.Module, images: Tensor, labels: Tensor) -> Probe:
        """Return a probe with the logits of a network."""
        if not len(images) or len(images) != len(labels):
            raise ValueError(f"expected images and as many labels, at least one, got {len(images)} and {len(labels)}.")
        with _batch_statistics(network):
            return Probe(images, labels, _logits(network, images))

    def distance(self, logits: Tensor) -> Tensor:
        """Return the mean squared difference between logits and those of the probe."""
        return (logits - self.logits).square().mean()

    def loss(self, logits: Tensor) -> Tensor:
        """Return the mean cross-entropy of logits."""
        return F.cross_entropy(logits, self.labels.cpu())


def contributions(
    network: nn.Module, probe: Probe, measure: Measure = "logits", layers: Iterable[str] | None = None
) -> Contributions:
    """Return the contribution of every relative pose, ``{layer: (|T|,)}``, of ``layers`` or all group convolutions.

    - "logits": the mean squared change of the logits, relative to those of the probe, without the slice
    - "loss": the rise of the mean cross-entropy without the slice
    - "gradient": the first-order estimate of that, ``sum W dL/dW`` over the slice, its root mean square over batches
    - "responses": the energy of y_t after the layer's attention, ``E[(mask y_t)^2]``
    - "weights": ``sum W_t^2``, without data

    For the first three, norms take their statistics from the batch, so that what norms would adapt to is not counted.
    """
    if measure not in MEASURES:
        raise ValueError(f"measure must be one of {', '.join(MEASURES)}, got {measure!r}.")
    every = group_convolutions(network)
    selected = every if layers is None else {name: every[name] for name in layers}
    return MEASURES[measure](network, selected, probe)


def by_logits(network: nn.Module, layers: Layers, probe: Probe) -> Contributions:
    """Return how far the logits move without each slice."""
    return _without_each(network, layers, probe, probe.distance)


def by_loss(network: nn.Module, layers: Layers, probe: Probe) -> Contributions:
    """Return how much the loss rises without each slice."""
    with _batch_statistics(network):
        whole = probe.loss(_logits(network, probe.images))
    return {name: losses - whole for name, losses in _without_each(network, layers, probe, probe.loss).items()}


def by_gradient(network: nn.Module, layers: Layers, probe: Probe) -> Contributions:
    """Return the first-order change of the loss without each slice."""
    squares = {name: torch.zeros(len(layer.relative), dtype=torch.float64) for name, layer in layers.items()}
    batches = list(zip(probe.images.split(BATCH // 8), probe.labels.split(BATCH // 8), strict=True))
    weights = [layer.weight for layer in layers.values()]
    with _batch_statistics(network), torch.enable_grad():
        for images, labels in batches:
            gradients = torch.autograd.grad(F.cross_entropy(network(images), labels), weights)
            for name, weight, gradient in zip(layers, weights, gradients, strict=True):
                squares[name] += (weight * gradient).flatten(3).sum(dim=(0, 1, 3)).double().cpu().square()
    return {name: (total / len(batches)).sqrt() for name, total in squares.items()}


def by_responses(network: nn.Module, layers: Layers, probe: Probe) -> Contributions:
    """Return the energy of each slice's responses after the attention that follows the layer, if any."""
    energy = {name: torch.zeros(len(layer.relative), dtype=torch.float64) for name, layer in layers.items()}
    attended = attended_convolutions(network, probe.images[:1])
    following = {conv: name for name, conv in attended.items() if not name.startswith(f"{conv}.")}  # not inside it

    def first_input(call: Call) -> tuple[str, Tensor]:
        return call.name, call.inputs[0]

    for batch in probe.images.split(BATCH):
        with recording(network, first_input, layers, before=True) as recorded:
            masks = attention_masks(network, batch)
        inputs = dict(recorded)
        with torch.no_grad():
            for name, layer in layers.items():
                mask = masks.get(following.get(name, ""))
                for index in range(len(layer.relative)):
                    responses = _slice_responses(layer, index, inputs[name])
                    if mask is not None and mask.shape == responses.shape:
                        responses = responses * mask
                    energy[name][index] += responses.double().square().sum().cpu() / len(probe.images)
    return energy


def by_weights(network: nn.Module, layers: Layers, probe: Probe) -> Contributions:
    """Return the squared norm of each slice's weights."""
    return {
        name: layer.weight.detach().double().square().flatten(3).sum(dim=(0, 1, 3)).cpu()
        for name, layer in layers.items()
    }


MEASURES: dict[str, Callable[[nn.Module, Layers, Probe], Contributions]] = {
    "logits": by_logits,
    "loss": by_loss,
    "gradient": by_gradient,
    "responses": by_responses,
    "weights": by_weights,
}


def _logits(network: nn.Module, images: Tensor, weights: Mapping[str, Tensor] | None = None) -> Tensor:
    """Return the logits of the network, with other ``weights`` for some parameters, in float64."""
    batches = images.split(BATCH)
    return torch.cat([functional_call(network, dict(weights or {}), (batch,)).double().cpu() for batch in batches])


def _without_each(network: nn.Module, layers: Layers, probe: Probe, value: Callable[[Tensor], Tensor]) -> Contributions:
    """Return a function of the logits that the network has without each slice."""
    result: Contributions = {}
    with _batch_statistics(network):
        for name, layer in layers.items():
            weights = [layer.weight.index_fill(2, _index(layer, i), 0.0) for i in range(len(layer.relative))]
            result[name] = torch.stack([value(_logits(network, probe.images, {f"{name}.weight": w})) for w in weights])
    return result


def _slice_responses(layer: PoseConv2d, index: int, x: Tensor) -> Tensor:
    """Return what one slice adds to the layer's output; attention maps the zeros of the other slices to zeros."""
    others = [i for i in range(len(layer.relative)) if i != index]
    y: Tensor = functional_call(layer, {"weight": layer.weight.index_fill(2, _index(layer, *others), 0.0)}, (x,))
    return y if layer.bias is None else y - layer.bias[:, None, None, None]


def _index(layer: PoseConv2d, *indices: int) -> Tensor:
    return torch.tensor(indices, dtype=torch.long, device=layer.weight.device)


@contextmanager
def _batch_statistics(network: nn.Module) -> Iterator[None]:
    """Switch the network to evaluation mode with norms that normalize each batch by its own statistics."""
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
