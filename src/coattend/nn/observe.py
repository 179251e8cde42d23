"""Run a model to observe it, and leave it as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from coattend.nn._conv_base import PoseConv2d
from coattend.nn.attention import PoseAttention
from coattend.nn.checks import check_model
from coattend.nn.transposed import GroupConvTranspose2d

T = TypeVar("T")
Layers = type[nn.Module] | tuple[type[nn.Module], ...] | Mapping[str, nn.Module]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode without gradients; every module returns to its former mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


@dataclass(frozen=True)
class Call:
    """One call of a layer; ``output`` is None where the call is observed before the layer executes."""

    name: str
    layer: nn.Module
    inputs: tuple[Any, ...]
    keywords: dict[str, Any]
    output: Any = None


@contextmanager
def recording(
    model: nn.Module, what: Callable[[Call], T | None], layers: Layers = nn.Module, *, before: bool = False
) -> Iterator[list[T]]:
    """Record something of every call of some layers, in the order of execution, while the model runs inside.

    - what: returns what to record of a call; None is not recorded
    - layers: the classes of the layers, or the layers themselves by name
    - before: observe a layer before it executes, not after

    >>> model = nn.Sequential(nn.Linear(3, 5), nn.ReLU())
    >>> with recording(model, lambda call: (call.name, tuple(call.output.shape)), nn.Linear) as shapes:
    ...     y = model(torch.zeros(2, 3))
    >>> shapes
    [('0', (2, 5))]
    """
    chosen = (
        layers
        if isinstance(layers, Mapping)
        else {name: module for name, module in model.named_modules() if isinstance(module, layers)}
    )
    records: list[T] = []

    def hook(name: str) -> Callable[..., None]:
        def record(layer: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any], output: Any = None) -> None:
            value = what(Call(name, layer, inputs, keywords, output))
            if value is not None:
                records.append(value)

        return record

    with ExitStack() as hooks:
        for name, layer in chosen.items():
            register = layer.register_forward_pre_hook if before else layer.register_forward_hook
            hooks.callback(register(hook(name), with_kwargs=True).remove)
        yield records


def attention_masks(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Return the mask of every attention layer of a model for one input: ``{layer name: (b, c, g, h, w)}``.

    Runs in evaluation mode without gradients; the model is left as it was.
    """
    check_model("attention_masks", model)

    def mask(call: Call) -> tuple[str, Tensor]:
        assert isinstance(call.layer, PoseAttention)
        return call.name, call.layer.mask(call.inputs[0])

    with evaluating(model), recording(model, mask, PoseAttention, before=True) as masks:
        model(x)
    return dict(masks)


def attended_convolutions(model: nn.Module, x: Tensor) -> dict[str, str]:
    """Return ``{attention layer: convolution}``: whose responses each attention weighs, by name.

    This is the last convolution that started before the attention, be it one before it or the one that contains it.
    Forms that networks place on the input of a convolution weigh no responses.
    """
    layers = (PoseAttention, PoseConv2d)
    with evaluating(model), recording(model, lambda call: call, layers, before=True) as calls:
        model(x)
    attended, last = {}, None
    for call in calls:
        if isinstance(call.layer, PoseConv2d):
            last = call.name
        elif last is not None and not call.layer.on_input:
            attended[call.name] = last
    return attended


def estimate_norm_statistics(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replace the running statistics of all batch norms by their uniform average over the batches, as in [CW16].

    Unlike ``torch.optim.swa_utils.update_bn``, dropout is off, and modes and momenta are restored afterwards.
    """
    check_model("estimate_norm_statistics", model)
    if not isinstance(batches, Iterable):
        raise ValueError(f"estimate_norm_statistics expects batches to iterate over, got {type(batches).__name__}.")
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    with evaluating(model):
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # torch's word for a cumulative average
            norm.train()
        try:
            for batch in batches:
                model(batch)
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum


def multiply_adds(network: nn.Module, image_shape: tuple[int, int, int]) -> dict[str, int]:
    """Return the multiply-adds of every convolution for one image (channels, height, width), by layer.

    For a restricted layer these are the ones that its relative poses need. Where it is faster to run such a layer as a
    full convolution with zeros (docs/restriction.md), more are computed than needed.
    """

    def count(call: Call) -> tuple[str, int]:
        layer = call.layer
        assert isinstance(layer, PoseConv2d)
        per_pose = layer.out_channels * layer.in_channels // layer.groups * layer.kernel_size**2
        pairs = layer.group.order * (len(layer.relative) or 1)
        # A filter is applied once per position of the smaller map: the output, or the input of a transposed layer.
        positions = (call.inputs[0] if isinstance(layer, GroupConvTranspose2d) else call.output).shape[-2:]
        return call.name, per_pose * pairs * positions.numel()

    with evaluating(network), recording(network, count, PoseConv2d) as counts:
        network(next(network.parameters()).new_zeros(1, *image_shape))
    totals: dict[str, int] = {}
    for name, operations in counts:
        totals[name] = totals.get(name, 0) + operations
    return totals
