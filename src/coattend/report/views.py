"""The layers of a network along the group axis, as arrays: responses, masks, masks brought back, dominant poses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from coattend.equivariance.geometry import window_of
from coattend.groups import FiniteGroup
from coattend.groups.action import transform_image, transform_map
from coattend.nn import AttentionLayer, PoseAttention, PoseConv2d, SliceCoAttentiveConv2d
from coattend.nn.observe import Call, evaluating, recording

COVERED = 0.9  # of the weights of an interpolation, so that the rest does not matter


@dataclass(frozen=True)
class LayerView:
    """One layer along the group axis for a batch of images.

    - responses, mask: (batch, channels, group, height, width); mask is None for a layer without attention, and for
      attention that does not multiply its input, how much attention each response gets
    - slices: with slice attention the relative poses of the filter slices, otherwise empty; the channel axis runs over
      output channels and, within each, over slices
    - reduction: the distance of two neighbouring positions, in pixels of the image
    - multiplies: whether attention multiplies the responses by the mask
    """

    name: str
    group: FiniteGroup
    responses: Tensor
    mask: Tensor | None
    slices: tuple[int, ...]
    reduction: int
    multiplies: bool = True

    @property
    def attended(self) -> Tensor:
        """The responses after attention."""
        return self.responses if self.mask is None else self.mask * self.responses

    def channel_name(self, channel: int) -> str:
        """Return the channel in words, including the filter slice."""
        if not self.slices:
            return f"channel {channel}"
        output, index = divmod(channel, len(self.slices))
        return f"channel {output}, slice {pose_name(self.group, self.slices[index])}"


def layer_views(model: nn.Module, images: Tensor) -> list[LayerView]:
    """Return every attention layer in the order of execution; without any, the map of every convolution."""
    attentive = any(_attends(module) for module in model.modules())
    slices: dict[nn.Module, tuple[int, ...]] = {
        module.attention: module.relative for module in model.modules() if isinstance(module, SliceCoAttentiveConv2d)
    }

    def stride(call: Call) -> tuple[int, int, int] | None:
        window = window_of(call.layer)
        return None if window is None else (call.inputs[0].shape[-1], call.output.shape[-1], window.stride)

    def view(call: Call) -> tuple[Call, FiniteGroup, Tensor, Tensor | None] | None:
        if isinstance(call.layer, AttentionLayer):
            shares = call.layer.shares(call.inputs[0]) if _attends(call.layer) else None
            return None if shares is None else (call, call.layer.group, call.inputs[0], shares)
        assert isinstance(call.layer, PoseConv2d)
        return (call, call.layer.group, call.output, None) if call.output.ndim == 5 else None

    layers = AttentionLayer if attentive else PoseConv2d
    with (
        evaluating(model),
        recording(model, stride) as strides,
        recording(model, view, layers, before=attentive) as views,
    ):
        model(images)
    reductions = {images.shape[-1]: 1}  # by the size of the map: no network here has one size at two scales
    for size, reduced, factor in strides:
        reductions.setdefault(reduced, reductions.get(size, 1) * factor)
    return [
        LayerView(
            call.name,
            group,
            x,
            mask,
            slices.get(call.layer, ()),
            reductions.get(x.shape[-1], 1),
            isinstance(call.layer, PoseAttention) or mask is None,
        )
        for call, group, x, mask in views
    ]


def _attends(module: nn.Module) -> bool:
    return isinstance(module, AttentionLayer) and module.input_on_group


def has_attention(model: nn.Module) -> bool:
    """Return whether a layer of the model attends to poses."""
    return any(isinstance(m, AttentionLayer) and m.input_on_group and m.group.order > 1 for m in model.modules())


def posed(image: Tensor, group: FiniteGroup) -> Tensor:
    """Return one image (channels, height, width) moved by every element, as a batch."""
    return torch.stack([transform_image(image[None], group, g)[0] for g in group.elements])


def brought_back(maps: Tensor, group: FiniteGroup) -> Tensor:
    """Move maps (element, channels, group, height, width) of an image in all poses back, each by its element.

    For an equivariant layer all are equal to the first. Maps of a plain layer, which have one pose, are rotated without
    relabelling. Where an element that interpolates reads positions outside of the frame, the result is not a number.
    """
    move = transform_map if maps.shape[2] == group.order else transform_image
    ones = torch.ones_like(maps[0, 0, 0])
    back = []
    for g, inverse in zip(group.elements, group.inverse.tolist(), strict=True):
        share = transform_image(ones, group, inverse)  # of the weights of interpolation that are inside of the frame
        back.append(move(maps[g : g + 1], group, inverse) / share.where(share > COVERED, torch.nan))
    return torch.cat(back)


@dataclass(frozen=True)
class LayerPicture:
    """The arrays in a picture of one channel, (input pose, group, height, width).

    - mask: None without attention
    - back: the mask, or the responses, :func:`brought_back`
    - difference: how far apart the rows of exact elements are when brought back, relative to the range
    - interpolated_difference: the same for the other elements; None if there are none
    """

    layer: str
    channel: str
    responses: Tensor
    mask: Tensor | None
    back: Tensor
    difference: float
    interpolated_difference: float | None

    def selected(self, rows: Sequence[int], poses: Sequence[int]) -> LayerPicture:
        """Return the arrays of some input poses and some poses of the layer."""
        index = np.ix_(rows, poses)
        mask = None if self.mask is None else self.mask[index]
        return replace(self, responses=self.responses[index], mask=mask, back=self.back[index])


def layer_picture(view: LayerView, group: FiniteGroup, channel: int | None = None) -> LayerPicture:
    """Reduce the view of an image in all poses of ``group`` to one channel, by default the one with most contrast."""
    shown = view.responses if view.mask is None else view.mask
    if channel is None:
        channel = int(contrast(shown[0]).sum(dim=(-2, -1)).argmax())
    one = slice(channel, channel + 1)
    back = brought_back(shown[:, one], group)[:, 0]
    spread = float(shown[:, one].amax() - shown[:, one].amin()) or 1.0
    apart = (back - back[0]).abs() / spread
    exact = list(group.exact_elements)
    interpolated = [g for g in group.elements if g not in exact]
    return LayerPicture(
        view.name,
        view.channel_name(channel),
        view.responses[:, channel],
        None if view.mask is None else view.mask[:, channel],
        back,
        float(apart[exact].max()),
        float(apart[interpolated].nan_to_num(0.0).max()) if interpolated else None,
    )


def contrast(maps: Tensor) -> Tensor:
    """Return the strongest minus the weakest pose (third axis from the end) at each position."""
    return maps.amax(dim=-3) - maps.amin(dim=-3)


def dominant_pose(view: LayerView) -> tuple[Tensor, Tensor]:
    """Return the pose with the largest attended responses, summed over channels, and its contrast; both (batch, h, w).

    The pose rotates with the image: it is g g0 at g.u if it was g0 at u.
    """
    strength = view.attended.relu().sum(dim=1)
    return strength.argmax(dim=1), contrast(strength)


def pose_name(group: FiniteGroup, g: int) -> str:
    """Return a short name for axes: ``90°``, for mirrored elements ``m 90°``."""
    if group.planar is None:
        return str(g)
    return f"{'m ' if group.mirrored[g] else ''}{group.angle(g):g}°"
