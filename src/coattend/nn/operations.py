"""Multiply-adds of the convolutions of a network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from coattend.nn.evaluating import evaluating
from coattend.nn.pose_conv import PoseConv2d


def multiply_adds(network: nn.Module, image_shape: tuple[int, int, int]) -> dict[str, int]:
    """Return the multiply-adds of every convolution for one image (channels, height, width), by layer.

    For a restricted layer these are the ones that its relative poses need. Where it is faster to run such a layer as a
    full convolution with zeros (docs/restriction.md), more are computed than needed.
    """
    counts: dict[str, int] = {}

    def watch(name: str, layer: PoseConv2d) -> torch.utils.hooks.RemovableHandle:
        def hook(_: nn.Module, inputs: Any, output: Tensor) -> None:
            per_pose = layer.out_channels * layer.in_channels // layer.groups * layer.kernel_size**2
            pairs = layer.group.order * (len(layer.relative) or 1)
            counts[name] = counts.get(name, 0) + per_pose * pairs * output.shape[-2:].numel()

        return layer.register_forward_hook(hook)

    handles = [watch(name, m) for name, m in network.named_modules() if isinstance(m, PoseConv2d)]
    parameter = next(network.parameters())
    with evaluating(network):
        try:
            network(torch.zeros(1, *image_shape, dtype=parameter.dtype, device=parameter.device))
        finally:
            for handle in handles:
                handle.remove()
    return counts
