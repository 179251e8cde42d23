"""What a network does along its group axis, as arrays: responses, masks, masks brought back, dominant poses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from coattend.equivariance.geometry import window_of
from coattend.groups import FiniteGroup
from coattend.groups.action import transform_image, transform_map
from coattend.nn import PoseAttention, PoseConv2d, SliceCoAttentiveConv2d
from coattend.nn.observe import Call, evaluating, recording


@dataclass(frozen=True)
class LayerView:
    """One layer seen along the group axis for a batch of images.

    - responses, mask: (batch, channels, group, height, width); mask is None for a layer without attention
    - slices: with slice attention, the relative poses of the filter slices; the channel axis runs over output channels
      and, within each, over them. Otherwise empty
    - reduction: how many pixels of the image one position stands for
    """

    name: str
    group: FiniteGroup
    responses: Tensor
    mask: Tensor | None
    slices: tuple[int, ...]
    reduction: int

    @property
    def attended(self) -> Tensor:
        """What is left of the responses after the attention."""
        return self.responses if self.mask is None else self.mask * self.responses

    def channel_name(self, channel: int) -> str:
        """In words, the filter slice included."""
        if not self.slices:
            return f"channel {channel}"
        output, place = divmod(channel, len(self.slices))
        return f"channel {output}, slice {pose_name(self.group, self.slices[place])}"


def layer_views(model: nn.Module, images: Tensor) -> list[LayerView]:
    """Return every attention layer in the order of execution; without any, the map of every convolution."""
    attentive = any(isinstance(module, PoseAttention) for module in model.modules())
    slices: dict[nn.Module, tuple[int, ...]] = {
        module.attention: module.relative for module in model.modules() if isinstance(module, SliceCoAttentiveConv2d)
    }

    def step(call: Call) -> tuple[int, int, int] | None:
        window = window_of(call.layer)
        return None if window is None else (call.inputs[0].shape[-1], call.output.shape[-1], window.stride)

    def seen(call: Call) -> tuple[Call, FiniteGroup, Tensor, Tensor | None] | None:
        if isinstance(call.layer, PoseAttention):
            return call, call.layer.group, call.inputs[0], call.layer.mask(call.inputs[0])
        assert isinstance(call.layer, PoseConv2d)
        return (call, call.layer.group, call.output, None) if call.output.ndim == 5 else None

    layers = PoseAttention if attentive else PoseConv2d
    with evaluating(model), recording(model, step) as steps, recording(model, seen, layers, before=attentive) as views:
        model(images)
    reductions = {images.shape[-1]: 1}  # by the size of the map: no network here has one size at two scales
    for size, reduced, stride in steps:
        reductions.setdefault(reduced, reductions.get(size, 1) * stride)
    return [
        LayerView(call.name, group, x, mask, slices.get(call.layer, ()), reductions.get(x.shape[-1], 1))
        for call, group, x, mask in views
    ]


def has_attention(model: nn.Module) -> bool:
    """Return whether a layer of the model attends to poses."""
    return any(isinstance(module, PoseAttention) and module.group.order > 1 for module in model.modules())


def posed(image: Tensor, group: FiniteGroup) -> Tensor:
    """One image (channels, height, width) moved by every element, as a batch."""
    return torch.stack([transform_image(image[None], group, g)[0] for g in group.elements])


def brought_back(maps: Tensor, group: FiniteGroup) -> Tensor:
    """Maps (element, channels, group, height, width) of an image in all poses, each moved back by its element.

    For an equivariant layer all are equal to the first. The poses of a plain layer's single one have nothing to be
    relabelled by and are turned only.
    """
    move = transform_map if maps.shape[2] == group.order else transform_image
    return torch.cat([move(maps[g : g + 1], group, int(group.inverse[g])) for g in group.elements])


@dataclass(frozen=True)
class LayerPicture:
    """The arrays that a picture of one channel shows, (input pose, group, height, width); mask None: no attention."""

    layer: str
    channel: str
    responses: Tensor
    mask: Tensor | None
    back: Tensor
    difference: float


def layer_picture(view: LayerView, group: FiniteGroup, channel: int | None = None) -> LayerPicture:
    """The view of an image in all poses of ``group``, reduced to one channel: the one with the most contrast."""
    shown = view.responses if view.mask is None else view.mask
    if channel is None:
        channel = int(contrast(shown[0]).sum(dim=(-2, -1)).argmax())
    one = slice(channel, channel + 1)
    back = brought_back(shown[:, one], group)[:, 0]
    spread = float(shown[:, one].amax() - shown[:, one].amin())
    difference = float((back - back[0]).abs().max()) / (spread or 1.0)
    mask = None if view.mask is None else view.mask[:, channel]
    return LayerPicture(view.name, view.channel_name(channel), view.responses[:, channel], mask, back, difference)


def contrast(maps: Tensor) -> Tensor:
    """Strongest minus weakest pose: how much the poses (third axis from the end) differ at a position."""
    return maps.amax(dim=-3) - maps.amin(dim=-3)


def dominant_pose(view: LayerView) -> tuple[Tensor, Tensor]:
    """The pose with the largest attended responses summed over channels, and its contrast; both (batch, h, w).

    The pose turns with the image: it is g g0 at g.u if it was g0 at u.
    """
    strength = view.attended.relu().sum(dim=1)
    return strength.argmax(dim=1), contrast(strength)


def pose_name(group: FiniteGroup, g: int) -> str:
    """An element in few characters, for axes: ``90°``, mirrored ones ``m 90°``."""
    if group.planar is None:
        return str(g)
    matrix = group.planar[g]
    return f"{'m ' if np.linalg.det(matrix) < 0 else ''}{pose_angle(group, g):g}°"


def pose_angle(group: FiniteGroup, g: int) -> float:
    """By how many degrees an element turns, counter-clockwise, after its mirror if it has one."""
    assert group.planar is not None
    second = group.planar[g][:, 1]  # where "up" goes, which mirroring the columns leaves alone
    return round(float(np.degrees(np.arctan2(-second[0], second[1]))) % 360, 1) % 360
