"""A sequence of layers that computes neighbours together where that is faster."""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx, nn

from coattend.functional.planes import add_bias
from coattend.nn._conv_base import PoseConv2d
from coattend.nn.co_attention import CoAttention
from coattend.nn.conv import GroupConv2d, LiftingConv2d
from coattend.nn.hooks import has_hooks
from coattend.nn.norm import GroupBatchNorm2d
from coattend.nn.slice_conv import SliceCoAttentiveConv2d

CONVOLUTIONS = (LiftingConv2d, GroupConv2d, SliceCoAttentiveConv2d)


class FusedSequential(nn.Sequential):
    """Apply layers one after another: :class:`torch.nn.Sequential`, faster.

    Co-attention, batch norm and ReLU that follow one another are one pass over the map forward and one backward. The
    input of the first one is saved for the backward pass; of all three together also the result, which the next layer
    saves in any case. A norm takes the bias of a slice-attentive convolution before it, which would be a pass of its
    own. A layer with a hook, a subclass or a layer whose ``forward`` is replaced is called on its own. Without
    gradients, a norm in evaluation overwrites the map of a convolution before it. In float32 and for filters that fit
    into the cache, co-attention joins the pass of the convolution before it, with the statistics of the norm in
    training, with the norm and the ReLU in evaluation.
    """

    def forward(self, x: Tensor | fx.Proxy) -> Any:
        if isinstance(x, fx.Proxy):  # torch.fx traces the layers one by one
            return super().forward(x)
        return self._compute(x)

    def _compute(self, x: Tensor) -> Tensor:
        layers = list(self)
        position, is_own = 0, False  # whether the layers here made the map, which nobody else reads then
        while position < len(layers):
            layer, following = layers[position], layers[position : position + 4]
            fused = (
                self._in_one_pass(following, x) or self._with_norm(following, x) or self._fused(following, x, is_own)
            )
            if fused is None:
                x = layer(x)
                position, is_own = position + 1, any(_is_plain(layer, kind) for kind in CONVOLUTIONS)
            else:
                x, number = fused
                position += number
        return x

    def _in_one_pass(self, layers: list[nn.Module], x: Tensor) -> tuple[Tensor, int] | None:
        """Return what a convolution, co-attention, a norm and a ReLU compute, if attention joins the convolution."""
        if len(layers) < 3:
            return None
        conv, attention, norm = layers[:3]
        if not isinstance(conv, PoseConv2d) or not any(_is_plain(conv, kind) for kind in (LiftingConv2d, GroupConv2d)):
            return None
        if not (isinstance(attention, CoAttention) and _is_plain(attention, CoAttention)):
            return None
        if not (isinstance(norm, GroupBatchNorm2d) and _is_plain(norm, GroupBatchNorm2d)):
            return None
        if not conv.out_channels == attention.channels == norm.num_features or conv.group != attention.group:
            return None
        if attention.weight.dtype != conv.weight.dtype or not norm.joins_convolution(x, conv):
            return None
        relu = len(layers) > 3 and _is_plain(layers[3], nn.ReLU)
        return norm.normalize_convolution(x, conv, attention.matrix(), relu), 3 + relu

    def _with_norm(self, layers: list[nn.Module], x: Tensor) -> tuple[Tensor, int] | None:
        """Return what a slice-attentive convolution and the layers after it compute, if a norm takes its bias."""
        conv, norm = (*layers, None)[:2]
        if not (isinstance(conv, SliceCoAttentiveConv2d) and _is_plain(conv, SliceCoAttentiveConv2d)):
            return None
        if not (isinstance(norm, GroupBatchNorm2d) and _is_plain(norm, GroupBatchNorm2d) and norm.takes_bias()):
            return None
        y = conv.without_bias(x)
        if conv.bias is None or not norm.fuses(y):
            return add_bias(y, conv.bias), 1
        relu = len(layers) > 2 and _is_plain(layers[2], nn.ReLU)
        return norm.normalize(y, None, relu, in_place=True, bias=conv.bias), 2 + relu

    def _fused(self, layers: list[nn.Module], x: Tensor, is_own: bool) -> tuple[Tensor, int] | None:
        """Return what the first layers compute together and their number, or None if they do not."""
        attention = layers[0] if _is_plain(layers[0], CoAttention) else None
        norm = layers[0] if attention is None else (layers[1] if len(layers) > 1 else None)
        if not (isinstance(norm, GroupBatchNorm2d) and _is_plain(norm, GroupBatchNorm2d)):
            return None
        order = attention.group.order if isinstance(attention, CoAttention) else None
        if not norm.fuses(x, order):
            return None
        matrix = None
        if isinstance(attention, CoAttention):
            attention.check(x)
            matrix = attention.matrix()
        number = 1 + (attention is not None)
        relu = len(layers) > number and _is_plain(layers[number], nn.ReLU)
        return norm.normalize(x, matrix, relu, is_own), number + relu


def _is_plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    return type(layer) is kind and "forward" not in vars(layer) and "mask" not in vars(layer) and not has_hooks(layer)
