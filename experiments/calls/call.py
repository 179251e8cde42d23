"""Wrong calls and wrong tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Call:
    """A call as a user might write it. ``fine`` is the reason why an answer is correct, if it is."""

    name: str
    function: Callable[[], object]
    fine: str = ""


def wrong(name: str, function: Callable[..., object], /, *arguments: Any, fine: str = "", **named: Any) -> Call:
    """Return the call of a function with these arguments."""
    return Call(name, partial(function, *arguments, **named), fine)


NUMBERS_AS_THEY_ARE = "whole numbers stay what they are: no arithmetic is done on them"
NOTHING = "nothing in, nothing out, as in torch"
SHAPES_ONLY = "shapes in, shapes out: the answer is on the meta device too"
QUANTISED = "torch has a kernel of its own for quantised tensors"
MIXED = "floating-point types may be mixed; the answer has its input's"

WRONG_TENSORS: dict[str, Callable[[Tensor], Any]] = {
    "None": lambda x: None,
    "numpy": lambda x: x.numpy(),
    "list": lambda x: x.tolist(),
    "text": lambda x: "x",
    "number": lambda x: 3,
    "int64": lambda x: (10 * x).long(),
    "uint8": lambda x: (10 * x).abs().to(torch.uint8),
    "bool": lambda x: x > 0,
    "complex": lambda x: x + 1j,
    "float64": lambda x: x.double(),
    "0-d": lambda x: x.sum(),
    "1-d": lambda x: x.flatten(),
    "axis less": lambda x: x[0],
    "axis more": lambda x: x[None],
    "no pixels": lambda x: x[..., :0, :0],
    "no channels": lambda x: x[:, :0],
    "twice the channels": lambda x: torch.cat([x, x], 1),
    "three poses": lambda x: x[:, :, :3],
    "no images": lambda x: x[:0],
    "sparse": lambda x: x.to_sparse(),
    "mkldnn": lambda x: x.to_mkldnn(),
    "nested": lambda x: torch.nested.nested_tensor([x[0], x[0]]),
    "quantised": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "meta": lambda x: x.to("meta"),
}


def with_wrong_tensors(
    name: str, function: Callable[[Any], object], x: Tensor, fine: dict[str, str] | None = None
) -> Iterator[Call]:
    """Yield calls of a function of one tensor with every wrong tensor."""
    fine = {"no images": NOTHING, "no pixels": NOTHING, "meta": SHAPES_ONLY, **(fine or {})}
    for what, spoilt in WRONG_TENSORS.items():
        if what == "three poses" and x.ndim < 5:
            continue
        yield Call(f"{name} on {what}", _Deferred(function, spoilt, x), fine.get(what, ""))


@dataclass(frozen=True)
class _Deferred:
    """Makes the wrong tensor in the child only: some are expensive, others warn."""

    function: Callable[[Any], object]
    spoilt: Callable[[Tensor], Any]
    x: Tensor

    def __call__(self) -> object:
        return self.function(self.spoilt(self.x))


def with_wrong_arguments(
    name: str, function: Callable[..., object], right: dict[str, Any], spoilt: dict[str, tuple[Any, ...]]
) -> Iterator[Call]:
    """Yield calls of a function with one wrong argument at a time, and with an unknown one."""
    for key, values in {**spoilt, "nonsense": (1,)}.items():
        for value in values:
            yield wrong(f"{name}({key}={str(value)[:40]})", function, **{**right, key: value})
