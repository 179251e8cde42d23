"""Strides replaced by pooling, so that a network is exact at sizes at which its strides are not."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from coattend.conversion.refusal import ConversionError
from coattend.conversion.sizes import uneven_windows
from coattend.conversion.tracing import TRACE_ERRORS


def with_pooling(model: nn.Module, images: Tensor) -> nn.Module:
    """Return a copy in which no window is uneven for these images: convolved at every position, then averaged.

    A strided convolution becomes one of stride 1 and an average over windows of the stride, an uneven maximum one over
    windows of the stride. Maps keep their sizes; what the network computes changes.
    """
    copied = copy.deepcopy(model)
    while uneven := uneven_windows(copied, images):
        name, window = uneven[0]
        layer = copied.get_submodule(name)
        extent = window.dilation * (window.size - 1) + 1
        if window.stride == 1 or (extent - 1 != 2 * window.padding and extent != window.stride + 2 * window.padding):
            raise _refusal(name)
        copied.set_submodule(name, _pooled(layer, window.stride))
        try:
            with torch.no_grad():
                still_uneven = name in dict(uneven_windows(copied, images) or [])
        except TRACE_ERRORS as error:
            raise _refusal(name) from error
        if still_uneven or f"{name}.1" in dict(uneven_windows(copied, images) or []):
            raise _refusal(name)
    return copied


def _pooled(layer: nn.Module, stride: int) -> nn.Module:
    if isinstance(layer, nn.MaxPool2d):
        return nn.MaxPool2d(stride)
    if isinstance(layer, nn.AvgPool2d):
        return nn.AvgPool2d(stride)
    assert isinstance(layer, nn.Conv2d)
    conv = copy.deepcopy(layer)
    conv.stride = (1, 1)
    return nn.Sequential(conv, nn.AvgPool2d(stride))


def _refusal(name: str) -> ConversionError:
    return ConversionError(
        name,
        "its stride cannot be replaced by pooling: the map before it is no multiple of the stride, or its padding does "
        "not keep the size",
        'choose a size that the strides divide, or strides="own-frame"',
    )
