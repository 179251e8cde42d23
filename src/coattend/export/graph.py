"""The graph of a frozen network while it is being built."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from coattend.export import attention_rules
from coattend.export.fused import FrozenUnit
from coattend.functional.gates import GateBanks
from coattend.functional.planes import fills_registers
from coattend.nn import AttentionLayer


class Builder:
    """Adds torch.nn modules and torch functions to a graph.

    - masks, responses: whether to return the masks and responses of the layers as well, in ``extra_outputs`` by name
    - eager: whether the graph is for PyTorch on CPUs, operation by operation; other engines choose kernels and memory
      layouts themselves
    - image_shape: channels, height and width of the images, for preprocessing that depends on them
    - name: the layer that is being frozen, after which modules and constants are named
    """

    def __init__(
        self,
        masks: bool = False,
        responses: bool = False,
        eager: bool = True,
        image_shape: tuple[int, int, int] | None = None,
    ) -> None:
        self.graph = fx.Graph()
        self.attributes: dict[str, Any] = {}
        self.masks = masks
        self.responses = responses
        self.eager = eager
        self.image_shape = image_shape
        self.name = ""
        self.extra_outputs: dict[str, fx.Node] = {}

    def named(self, name: str) -> Builder:
        """Return a builder of the same graph for another layer."""
        builder = copy.copy(self)
        builder.name = name
        return builder

    def module(self, name: str, module: nn.Module, *nodes: fx.Node) -> fx.Node:
        """Call a torch.nn module, which keeps the name of the layer that it represents."""
        if self.eager and isinstance(module, nn.Conv2d):
            # Filters and input in one format: a convolution would convert the filters in every pass.
            memory_format = _memory_format(module)
            module.weight.data = module.weight.data.contiguous(memory_format=memory_format)
            nodes = tuple(self.graph.call_method("contiguous", (n,), {"memory_format": memory_format}) for n in nodes)
        return self.graph.call_module(self._attribute(name, module), nodes)

    def calls(self, node: fx.Node, module: nn.Module) -> bool:
        """Return whether a node is the call of a module."""
        return node.op == "call_module" and self.attributes.get(str(node.target)) is module

    def withdrawn(self, call: fx.Node) -> fx.Node:
        """Remove the call of a module, and the module, for another one that takes its input, which is returned."""
        (source,) = call.all_input_nodes
        del self.attributes[str(call.target)]
        self.graph.erase_node(call)
        return source

    def tensor(self, name: str, tensor: Tensor) -> fx.Node:
        """Add a constant, which must not share memory with the original network.

        Constants are stored apart from the modules: tools that replace a convolution drop everything below it.
        """
        return self.graph.get_attr(self._attribute(f"tables.{name}", tensor))

    def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> fx.Node:
        """Call a function of torch."""
        return self.graph.call_function(function, arguments, named)

    def inplace(self, method: str, node: fx.Node, *arguments: Any) -> fx.Node:
        """Overwrite a tensor that no other node reads; engines that plan their memory themselves get a new one."""
        if self.eager:
            return self.graph.call_method(method, (node, *arguments))
        return self.call(getattr(torch, method.rstrip("_")), node, *arguments)

    def folded(self, value: Value, poses: int) -> fx.Node:
        """Return a map as (batch, channels * poses, height, width)."""
        return value.node if value.poses == poses else self.call(torch.flatten, self.original(value), 1, 2)

    def original(self, value: Value) -> fx.Node:
        """Return the value in the shape that it has in the original network."""
        return value.node if value.poses is None else self.unfolded(value.node, value.poses)

    def unfolded(self, node: fx.Node, poses: int) -> fx.Node:
        """Return planes as a map (batch, channels, poses, height, width)."""
        return self.call(torch.unflatten, node, 1, (-1, poses))

    def require_size(self, images: fx.Node, shape: tuple[int, int, int]) -> None:
        """Raise if images (batch, channels, height, width) of another shape arrive."""
        size = self.call(getattr, images, "shape")
        for axis, expected in enumerate(shape, start=1):
            matches = self.call(operator.eq, self.call(operator.getitem, size, axis), expected)
            self.call(torch._assert, matches, f"this network takes images (batch, {', '.join(map(str, shape))})")

    def respond(self, layer: str, value: Value) -> Value:
        """Return the responses of a layer as an extra output, if responses are requested."""
        if not self.responses:
            return value
        self.extra_outputs[f"response:{layer}"] = self.original(value)
        return value.shared()

    def co_attention(self, matrices: Tensor, value: Value) -> Value:
        """Add co-attention with matrices (channels, group, group) to the layer that is being frozen."""
        return attention_rules.co_attention(self, matrices, value)

    def gate(self, layer: AttentionLayer, banks: GateBanks, value: Value) -> Value:
        """Add a layer of gates."""
        return attention_rules.gate(self, layer, banks, value)

    def traced(self, layer: AttentionLayer, value: Value) -> Value:
        """Add the operations that an attention layer executes."""
        return attention_rules.traced_attention(self, layer, value)

    def _attribute(self, name: str, content: nn.Module | Tensor) -> str:
        unique, number = name, 1
        while unique in self.attributes:  # a layer that is used twice
            number += 1
            unique = f"{name}_{number}"
        self.attributes[unique] = content
        return unique


def _memory_format(conv: nn.Conv2d) -> torch.memory_format:
    """Return the fastest memory format for a convolution on CPUs.

    It is channels-last, except for channel groups that fill vector registers.
    """
    planes = fills_registers(conv.in_channels // conv.groups, conv.out_channels // conv.groups, conv.groups)
    return torch.contiguous_format if planes else torch.channels_last


SMALLEST_SCALE = 1e-12  # smaller scales of a norm are not divided by


@dataclass(frozen=True)
class Fold:
    """The constants of a frozen network that a batch norm after a value can be folded into.

    Without ``matrices`` the value is the output of ``conv``, perhaps in another order of planes. With them it is that
    output multiplied by masks, which stay the same if the matrices of their logits are divided by the scale:
    ``s (m x) + t = m (s x) + t``.

    - channels: for each output plane of the convolution, the channel of the value
    - matrices: attention matrices, each tensor with the channel of the value for each matrix in it
    - offset: the constant that is added at the end, one for each channel or plane
    """

    conv: nn.Conv2d | nn.ConvTranspose2d
    channels: Tensor
    matrices: tuple[tuple[Tensor, Tensor], ...] = ()
    offset: Tensor | None = None

    def admits(self, scale: Tensor) -> bool:
        """Return whether the constants can be scaled."""
        return not self.matrices or bool((scale.abs() > SMALLEST_SCALE).all())

    def apply(self, scale: Tensor, shift: Tensor) -> Tensor | None:
        """Change the constants so that the value becomes ``scale * value + shift``, both float64 and per channel.

        Returns the shift if no constant could take it, so that it has to be added to the value.
        """
        conv, factors = self.conv, scale[self.channels]
        bias = torch.zeros_like(factors) if conv.bias is None else conv.bias.double() * factors
        if not self.matrices:
            bias = bias + shift[self.channels]
        conv.weight.data = (conv.weight.double() * _along_outputs(conv, factors)).to(conv.weight.dtype)
        if conv.bias is not None or not self.matrices:
            conv.bias = nn.Parameter(bias.to(conv.weight.dtype), requires_grad=False)
        for matrices, channels in self.matrices:
            matrices.copy_(matrices.double() / scale[channels][:, None, None])
        if not self.matrices:
            return None
        if self.offset is None:
            return shift
        poses = len(self.offset) // len(scale)
        scales, shifts = (t.repeat_interleave(poses).view_as(self.offset) for t in (scale, shift))
        self.offset.copy_(self.offset.double() * scales + shifts)
        return None


def _along_outputs(conv: nn.Conv2d | nn.ConvTranspose2d, factors: Tensor) -> Tensor:
    """Return one factor per output plane in a shape that multiplies the filters of a convolution."""
    if isinstance(conv, nn.Conv2d):
        return factors[:, None, None, None]
    by_group = factors.view(conv.groups, 1, -1).expand(-1, conv.in_channels // conv.groups, -1)
    return by_group.flatten(0, 1)[:, :, None, None]


@dataclass(frozen=True)
class Value:
    """What a node of the original network became.

    - poses: the value is a map, folded into (batch, channels * poses, height, width); None if it is what it was
    - fold: what a batch norm after the value can be folded into, None for nothing
    - owned: whether no other node reads the value, so that it may be overwritten
    - unit: the module whose output the value is, if an offset or a ReLU after it can become part of the module
    """

    node: fx.Node
    poses: int | None = None
    fold: Fold | None = None
    owned: bool = False
    unit: FrozenUnit | None = None

    def shared(self) -> Value:
        """Return the same value for several readers: neither its constants nor its content may change."""
        return replace(self, fold=None, owned=False, unit=None)
