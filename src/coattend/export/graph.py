"""The graph of a frozen network while it is being built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from coattend.export.attention_rules import co_attended
from coattend.export.tracing import traced_attention
from coattend.export.value import Value as Value
from coattend.nn import PoseAttention


class Builder:
    """Adds torch.nn modules and torch functions to a graph.

    ``extra_outputs`` collects masks and responses by name where they were asked for. ``layer`` is the name of the
    attention that is being frozen. ``eager``: the graph is made for
    torch as it runs on CPUs, operation by operation; other engines choose kernels and memory layouts themselves.
    """

    def __init__(self, masks: bool = False, responses: bool = False, eager: bool = True) -> None:
        self.graph = fx.Graph()
        self.attributes: dict[str, Any] = {}
        self.masks = masks
        self.responses = responses
        self.eager = eager
        self.extra_outputs: dict[str, fx.Node] = {}
        self.layer = ""

    def module(self, name: str, module: nn.Module, node: fx.Node) -> fx.Node:
        """Call a torch.nn module, which keeps the name of the layer it stands for."""
        if self.eager and isinstance(module, nn.Conv2d):
            # The input decides, not the filters: pruning needs those plane after plane.
            module.weight.data = module.weight.data.contiguous()
            node = self.graph.call_method("contiguous", (node,), {"memory_format": _memory_format(module)})
        return self.graph.call_module(self._attribute(name, module), (node,))

    def tensor(self, name: str, tensor: Tensor) -> fx.Node:
        """A constant, which must not be part of the original network's memory.

        It has a place of its own, apart from the modules: tools that replace a convolution drop what is below it.
        """
        return self.graph.get_attr(self._attribute(f"tables.{name}", tensor))

    def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> fx.Node:
        """Call a function of torch."""
        return self.graph.call_function(function, arguments, named)

    def inplace(self, method: str, node: fx.Node, *arguments: Any) -> fx.Node:
        """Overwrite a tensor that nobody else reads; engines that plan their memory themselves get a new one."""
        if self.eager:
            return self.graph.call_method(method, (node, *arguments))
        return self.call(getattr(torch, method.rstrip("_")), node, *arguments)

    def folded(self, value: Value, poses: int) -> fx.Node:
        """A map as (batch, channels * poses, height, width)."""
        return value.node if value.poses == poses else self.call(torch.flatten, self.original(value), 1, 2)

    def original(self, value: Value) -> fx.Node:
        """The value in the shape that it has in the original network."""
        return value.node if value.poses is None else self.unfolded(value.node, value.poses)

    def unfolded(self, node: fx.Node, poses: int) -> fx.Node:
        """Planes as a map (batch, channels, poses, height, width)."""
        return self.call(torch.unflatten, node, 1, (-1, poses))

    def respond(self, layer: str, value: Value) -> Value:
        """Keep what comes out of a layer, or goes into its attention, if responses are wanted."""
        if not self.responses:
            return value
        self.extra_outputs[f"response:{layer}"] = self.original(value)
        return value.shared()

    def expose_mask(self, mask: fx.Node) -> None:
        """Keep the mask (batch, channels, poses, height, width) of the attention being frozen, if masks are wanted."""
        if self.masks:
            self.extra_outputs[f"mask:{self.layer}"] = mask

    def co_attention(self, matrix: Tensor, value: Value) -> Value:
        """Apply co-attention with matrices (channels, group, group)."""
        return co_attended(self, self.layer, matrix, value)

    def traced(self, layer: PoseAttention, value: Value) -> Value:
        """Add the operations that an attention layer executes."""
        return traced_attention(self, self.layer, layer, value)

    def _attribute(self, name: str, content: nn.Module | Tensor) -> str:
        unique, number = name, 1
        while unique in self.attributes:  # a layer that is used twice
            number += 1
            unique = f"{name}_{number}"
        self.attributes[unique] = content
        return unique


def _memory_format(conv: nn.Conv2d) -> torch.memory_format:
    """What a convolution on CPUs is fastest with: pixel after pixel, but for channel groups that fill registers."""
    fills_registers = all(channels // conv.groups % 8 == 0 for channels in (conv.in_channels, conv.out_channels))
    return torch.contiguous_format if conv.groups > 1 and fills_registers else torch.channels_last
