"""What torch's tools need to know about the operators: how many operations they are, and how they may be sharded.

Both tools are slow to import, so each is told when the user's program imports it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

OPERATORS = torch.ops.coattend


def register_flops() -> None:
    """Tell ``torch.utils.flop_counter`` about the products of matrices, the only operations that it counts."""
    from torch.utils.flop_counter import conv_flop_count, register_flop_formula

    def attention(x: Sequence[int], matrix: Sequence[int], *rest: Any, **named: Any) -> int:
        batch, (channels, order, _), (height, width) = x[0], matrix, x[-2:]
        return 2 * batch * channels * order**2 * height * width

    def attention_backward(
        grad: Sequence[int], x: Sequence[int], matrix: Sequence[int], *rest: Any, **named: Any
    ) -> int:
        return 3 * attention(x, matrix)  # the logits once more, the gradients of x and of the matrix

    def convolution(x: Sequence[int], weight: Sequence[int], *rest: Any, out_shape: Sequence[int], **named: Any) -> int:
        return conv_flop_count(_planes(x), list(weight), _planes(out_shape))

    def convolution_backward(
        grad: Sequence[int], x: Sequence[int], weight: Sequence[int], *rest: Any, **named: Any
    ) -> int:
        return 2 * conv_flop_count(_planes(x), list(weight), _planes(grad))

    register_flop_formula([OPERATORS.co_attention, OPERATORS.slice_attention])(attention)
    register_flop_formula([OPERATORS.co_attention_backward, OPERATORS.slice_attention_backward])(attention_backward)
    register_flop_formula(OPERATORS.convolution)(convolution)
    register_flop_formula(OPERATORS.convolution_backward)(convolution_backward)


def register_shardings() -> None:
    """Tell ``torch.distributed.tensor`` along which axes the operators work independently."""
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    whole, batch = Replicate(), Shard(0)

    def attention(x: Any, matrix: Any) -> list[Any]:
        positions = [([Shard(axis)], [Shard(axis), whole]) for axis in (0, 3, 4)]
        return [([whole], [whole, whole]), *positions, ([Shard(1)], [Shard(1), batch])]

    def attention_backward(grad: Any, x: Any, matrix: Any) -> list[Any]:
        positions = [([Shard(axis), Partial()], [Shard(axis), Shard(axis), whole]) for axis in (0, 3, 4)]
        channels = ([Shard(1), batch], [Shard(1), Shard(1), batch])
        return [([whole, whole], [whole, whole, whole]), *positions, channels]

    def slices(planes: Any, matrix: Any, rows: Any, channel_step: Any) -> list[Any]:
        return [([whole], [whole, whole, None, None]), ([batch], [batch, whole, None, None])]

    def slices_backward(grad: Any, planes: Any, matrix: Any, rows: Any, channel_step: Any) -> list[Any]:
        sharded = ([batch, Partial()], [batch, batch, whole, None, None])
        return [([whole, whole], [whole, whole, whole, None, None]), sharded]

    def pooling(x: Any) -> list[Any]:
        return [([whole], [whole]), *(([Shard(axis)], [Shard(axis)]) for axis in range(x.ndim - 2))]

    def pooling_backward(grad: Any, x: Any) -> list[Any]:
        return [([whole], [whole, whole]), *(([Shard(axis)], [Shard(axis)] * 2) for axis in range(x.ndim - 2))]

    for operator, rule in (
        (OPERATORS.co_attention, attention),
        (OPERATORS.co_attention_backward, attention_backward),
        (OPERATORS.slice_attention, slices),
        (OPERATORS.slice_attention_backward, slices_backward),
        (OPERATORS.max_pool, pooling),
        (OPERATORS.max_pool_backward, pooling_backward),
    ):
        register_sharding(operator.default)(rule)


def when_imported(name: str, tell: Callable[[], None]) -> None:
    """Call ``tell`` as soon as a module is imported, now if it has been."""
    if name in sys.modules:
        tell()
    else:
        sys.meta_path.insert(0, _Watch(name, tell))


class _Watch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module as it would be found without it, and calls after loading it."""

    def __init__(self, name: str, tell: Callable[[], None]) -> None:
        self.name = name
        self.tell = tell

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            self.loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        module.__loader__ = spec.loader = self.loader
        self.loader.exec_module(module)
        self.tell()


def _planes(shape: Sequence[int]) -> list[int]:
    """(batch, channels, group, height, width) with the poses among the channels."""
    return list(torch.Size(shape)) if len(shape) == 4 else [shape[0], shape[1] * shape[2], *shape[3:]]
