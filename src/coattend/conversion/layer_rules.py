"""How layers of torch are converted: one function per class of layers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from coattend.conversion.geometry import Window, conv_window, pair, pool_window, square_kernel
from coattend.conversion.refusal import ConversionError
from coattend.conversion.reshaping import reshaped
from coattend.conversion.step import Step
from coattend.conversion.values import IMAGE_AXES, Form, Value
from coattend.export.rules import POINTWISE
from coattend.nn import (
    CoAttention,
    GroupBatchNorm2d,
    GroupConv2d,
    GroupConvTranspose2d,
    GroupDropout2d,
    LiftingConv2d,
    PoseConv2d,
    SpatialAvgPool2d,
    SpatialMaxPool2d,
)
from coattend.nn.hooks import has_hooks

ACTIVATIONS = (*POINTWISE, nn.ReLU, nn.Dropout, nn.Identity, nn.PReLU, nn.RReLU, nn.AlphaDropout)
NORMS_PER_POSE = (nn.GroupNorm, _InstanceNorm, nn.LocalResponseNorm, nn.CrossMapLRN2d)
PADS = (nn.ZeroPad2d, nn.ReflectionPad2d, nn.ReplicationPad2d, nn.CircularPad2d, nn.ConstantPad2d)


@singledispatch
def convert_layer(layer: nn.Module, step: Step) -> Value:
    """Execute a layer without a rule of its own in the frame of each pose, where it computes what it always did."""
    return step.own_frame(None, f"no rule for {type(layer).__name__}", layer)


def _for(*classes: type[nn.Module]) -> Callable[[Any], Any]:
    def register(rule: Any) -> Any:
        for kind in classes:
            convert_layer.register(kind, rule)
        return rule

    return register


@_for(*ACTIVATIONS)
def convert_activation(layer: nn.Module, step: Step) -> Value:
    """Apply a layer that treats all elements of a channel alike, in whatever form the value has."""
    copied = step.builder.once(layer, "activation", lambda: copy.copy(layer))
    if getattr(copied, "inplace", False):
        vars(copied)["inplace"] = False  # the value may be read in another form as well
    return step.result(step.builder.module(step.name, copied, step.x.node), step.x.form, step.x.axes)


@_for(nn.Conv2d)
def convert_conv(layer: nn.Conv2d, step: Step) -> Value:
    """Put the filter at the identity of a group convolution whose other relative poses are zero."""
    window = conv_window(layer)
    if step.x.axes is not None and not step.x.is_map_like:
        return step.own_frame(None, "its input is not an image (batch, channels, height, width)", layer)
    if step.x.axes is None:
        return step.own_frame(None, "the axes of its input are not known", layer)
    if window is None:
        return step.own_frame(IMAGE_AXES, "it treats rows and columns differently", layer)
    if not _fits(step, window):
        return step.own_frame(IMAGE_AXES, "its stride does not cover the map evenly", layer)
    lifts = step.x.form is Form.IMAGE
    inflated, form = (inflated_lifting, "lifting") if lifts else (inflated_conv, "of maps")
    conv = step.builder.once(layer, form, lambda: inflated(layer, window, step))
    value = step.x.node if lifts else step.builder.as_form(step.x, Form.MAP)
    node = step.builder.module(step.name, conv, value)
    if step.settings.attention and max(step.shape[-2:]) > 1:
        attention = step.builder.once(layer, f"attention after {form}", lambda: _attention_after(layer, step))
        node = step.builder.module(f"{step.name}_attention", attention, node)
    return step.result(node, Form.MAP, IMAGE_AXES, type(conv).__name__)


def _attention_after(layer: nn.Conv2d, step: Step) -> CoAttention:
    attention = CoAttention(layer.out_channels, step.settings.group, init_std=0, init_diagonal=0)
    return attention.to(layer.weight.device, layer.weight.dtype)


def inflated_lifting(layer: nn.Conv2d, window: Window, step: Step) -> LiftingConv2d:
    """Return a convolution of images as one that lifts them."""
    conv = LiftingConv2d(
        layer.in_channels, layer.out_channels, window.size, step.settings.group, **_shared(layer, window)
    )
    return _with_weights(conv, layer, square_kernel(layer.weight.detach()))


def inflated_conv(layer: nn.Conv2d, window: Window, step: Step) -> GroupConv2d:
    """Return a convolution of images as one of maps that reads each pose for itself."""
    settings = step.settings
    arguments = (layer.in_channels, layer.out_channels, window.size, settings.group)
    conv = GroupConv2d(*arguments, **_shared(layer, window), relative=settings.relative_of(step.name))
    weight = torch.zeros_like(conv.weight)
    weight[:, :, conv.relative.index(0)] = square_kernel(layer.weight.detach())
    return _with_weights(conv, layer, weight)


def _shared(layer: nn.Conv2d, window: Window) -> dict[str, Any]:
    return {
        "stride": window.stride,
        "padding": window.padding,
        "dilation": window.dilation,
        "groups": layer.groups,
        "bias": layer.bias is not None,
        "padding_mode": layer.padding_mode,
        "device": layer.weight.device,
        "dtype": layer.weight.dtype,
    }


def _with_weights(conv: Any, layer: nn.Conv2d | nn.ConvTranspose2d, weight: Tensor) -> Any:
    with torch.no_grad():
        conv.weight.copy_(weight)
        conv.weight.requires_grad_(layer.weight.requires_grad)
        if layer.bias is not None:
            conv.bias.copy_(layer.bias)
            conv.bias.requires_grad_(layer.bias.requires_grad)
    return conv


def _fits(step: Step, window: Window) -> bool:
    """Return whether a window is exact here; of one that is not, remember it, unless own frames are allowed."""
    fits = window.fits(*step.x.shape[-2:])
    if not fits and step.settings.strides == "exact":
        step.uneven.append((step.name, window))
    return fits


@_for(nn.ConvTranspose2d)
def convert_transposed(layer: nn.ConvTranspose2d, step: Step) -> Value:
    """Turn the filter of a transposed convolution with the poses."""
    node = step.as_map()
    if node is None:
        return step.own_frame(None, "its input is not known to be an image", layer)
    sizes = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    if any(a != b for a, b in map(pair, sizes)) or any(pair(layer.output_padding)):
        reason = "it treats rows and columns, or opposite sides, differently"
        return step.own_frame(IMAGE_AXES, reason, layer)
    conv = step.builder.once(layer, "transposed", lambda: _inflated_transposed(layer, step))
    return step.result(step.builder.module(step.name, conv, node), Form.MAP, IMAGE_AXES, type(conv).__name__)


def _inflated_transposed(layer: nn.ConvTranspose2d, step: Step) -> GroupConvTranspose2d:
    conv = GroupConvTranspose2d(
        layer.in_channels, layer.out_channels, pair(layer.kernel_size)[0], step.settings.group,
        stride=pair(layer.stride)[0], padding=pair(layer.padding)[0], groups=layer.groups,
        bias=layer.bias is not None, dilation=pair(layer.dilation)[0], relative=step.settings.relative_of(step.name),
        device=layer.weight.device, dtype=layer.weight.dtype,
    )  # fmt: skip
    weight = torch.zeros_like(conv.weight)
    weight[:, :, conv.relative.index(0)] = layer.weight.detach()
    inflated: GroupConvTranspose2d = _with_weights(conv, layer, weight)
    return inflated


@_for(nn.BatchNorm2d, nn.SyncBatchNorm)
def convert_batch_norm(layer: _BatchNorm, step: Step) -> Value:
    """Share statistics and parameters over the poses."""
    if step.x.form is not Form.MAP:
        return step.verbatim(step.x.axes, layer)
    norm = step.builder.once(layer, "norm", lambda: _shared_norm(layer))
    return step.result(step.builder.module(step.name, norm, step.x.node), Form.MAP, IMAGE_AXES, "GroupBatchNorm2d")


def _shared_norm(layer: _BatchNorm) -> GroupBatchNorm2d:
    settings = layer.eps, layer.momentum, layer.affine, layer.track_running_stats
    norm = GroupBatchNorm2d(layer.num_features, *settings, sync=isinstance(layer, nn.SyncBatchNorm))
    tensors = layer.state_dict()
    if tensors:
        like = next(iter(tensors.values()))
        norm = norm.to(like.device, like.dtype)
        norm.load_state_dict(tensors)
    for parameter, original in zip(norm.parameters(), layer.parameters(), strict=True):
        parameter.requires_grad_(original.requires_grad)
    return norm


@_for(*NORMS_PER_POSE)
def convert_norm_per_pose(layer: nn.Module, step: Step) -> Value:
    """Normalize each pose by its own statistics, as the plain network does."""
    if not step.x.is_map_like:
        return step.own_frame(step.x.axes, "its input is not known to be an image", layer)
    return step.verbatim(step.x.axes, layer)


@_for(nn.LayerNorm)
def convert_layer_norm(layer: nn.LayerNorm, step: Step) -> Value:
    """Normalize over the channels of each position; over positions each pose in its own frame."""
    if _acts_on_channels(step, len(layer.normalized_shape)):
        return step.verbatim(step.x.axes, layer)
    return step.own_frame(step.x.axes, "it has parameters per position", layer)


@_for(nn.Linear)
def convert_linear(layer: nn.Linear, step: Step) -> Value:
    """Map the channels of each position; what was flattened over positions is in its own frame already."""
    axes = None if step.x.axes is None else (*step.x.axes[:-1], "c")
    if step.x.axes is not None and step.x.axes[-1] in "hw":
        return step.own_frame(None, "it maps a row of pixels", layer)
    return step.verbatim(axes, layer)


def _acts_on_channels(step: Step, last: int) -> bool:
    return step.x.axes is not None and all(axis == "c" for axis in step.x.axes[-last:])


@_for(nn.MaxPool2d, nn.AvgPool2d)
def convert_pool(layer: nn.MaxPool2d | nn.AvgPool2d, step: Step) -> Value:
    """Pool the planes of a map."""
    if getattr(layer, "return_indices", False):
        return step.own_frame(None, "it returns indices of pixels", layer)
    if step.as_map() is None:
        return step.own_frame(None, "its input is not known to be an image", layer)
    window = pool_window(layer)
    if window is None:
        return step.own_frame(IMAGE_AXES, "it treats rows and columns differently", layer)
    if not _fits(step, window):
        return step.own_frame(IMAGE_AXES, "its stride does not cover the map evenly", layer)
    counts_all = getattr(layer, "count_include_pad", True) or not window.padding
    if window.dilation > 1 or not counts_all or getattr(layer, "divisor_override", None) is not None:
        return step.on_planes(layer)
    kind = SpatialMaxPool2d if isinstance(layer, nn.MaxPool2d) else SpatialAvgPool2d
    pool = kind(window.size, window.stride, window.padding)
    node = step.builder.module(step.name, pool, step.builder.as_form(step.x, Form.MAP))
    return step.result(node, Form.MAP, IMAGE_AXES)


@_for(nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
def convert_adaptive_pool(layer: nn.Module, step: Step) -> Value:
    """Pool the planes of a map; the bins are placed symmetrically."""
    if getattr(layer, "return_indices", False):
        return step.own_frame(None, "it returns indices of pixels", layer)
    if step.as_map() is None:
        return step.own_frame(None, "its input is not known to be an image", layer)
    if step.shape[-1] != step.shape[-2]:
        return step.own_frame(IMAGE_AXES, "it treats rows and columns differently", layer)
    return step.on_planes(layer)


@_for(nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d)
def convert_upsample(layer: nn.Upsample, step: Step) -> Value:
    """Enlarge the planes of a map by a whole factor; by others the nearest pixels depend on the side."""
    if step.as_map() is None:
        return step.own_frame(None, "its input is not known to be an image", layer)
    whole = all(new % old == 0 for new, old in zip(step.shape[-2:], step.x.shape[-2:], strict=True))
    if not whole:
        return step.own_frame(IMAGE_AXES, "it does not enlarge by a whole factor", layer)
    return step.on_planes(layer)


@_for(*PADS)
def convert_padding(layer: Any, step: Step) -> Value:
    """Pad the planes of a map on all sides alike."""
    if step.as_map() is None:
        return step.own_frame(None, "its input is not known to be an image", layer)
    if len(set(layer.padding)) > 1:
        return step.own_frame(IMAGE_AXES, "it pads the sides differently", layer)
    return step.on_planes(layer)


@_for(nn.Dropout2d)
def convert_dropout(layer: nn.Dropout2d, step: Step) -> Value:
    """Drop channels with all their poses."""
    if step.x.form is Form.MAP:
        return step.result(step.builder.module(step.name, GroupDropout2d(layer.p), step.x.node), Form.MAP, step.x.axes)
    return step.verbatim(step.x.axes, layer)


@_for(nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle)
def convert_shuffle(layer: nn.Module, step: Step) -> Value:
    """Move channels to positions, or back, in the frame of each pose: which channel goes where has a direction."""
    if isinstance(layer, nn.ChannelShuffle):
        return step.verbatim(step.x.axes, layer)
    return step.own_frame(step.x.axes, "it ties channels to positions", layer)


@_for(nn.Softmax2d)
def convert_softmax(layer: nn.Module, step: Step) -> Value:
    """Apply softmax over the channels of each position."""
    return step.verbatim(step.x.axes, layer)


@_for(nn.Flatten, nn.Unflatten)
def convert_reshaping(layer: nn.Module, step: Step) -> Value:
    """Reshape as the function does that the layer stands for."""
    return reshaped(step, layer)


@_for(PoseConv2d)
def refuse_group_conv(layer: PoseConv2d, step: Step) -> Value:
    """Refuse a network that is on a group already."""
    raise ConversionError(
        f"{step.name} ({type(layer).__name__})",
        f"it is a layer over {layer.group.name} already",
        "pass the plain network; coattend.nn.RestrictGroup or create_model change the group of such networks",
    )


def has_rule(layer: nn.Module) -> bool:
    """Return whether a rule describes what a layer computes: its class is torch's, and nothing was replaced in it."""
    kind = next((c for c in type(layer).__mro__ if c in convert_layer.registry and c is not object), None)
    is_own = kind is not None and type(layer).forward is getattr(kind, "forward", None) and "forward" not in vars(layer)
    return is_own and not has_hooks(layer)
