"""The memory format of maps: planes one after another, or channels-last, where each position has all its planes.

Channels-last is the format of ``torch.channels_last`` for the folded map (batch, channels * group, height, width): the
poses are innermost, then the channels. Convolutions on CPUs are faster with it. A format changes strides only: shapes,
and results up to rounding, are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from coattend.functional.dispatch import HAS_OPERATORS, decomposes

Format = Literal["auto", "planes", "channels_last"]
TYPES = (torch.float32, torch.bfloat16)


@dataclass
class _State:
    format: Format = "auto"


_STATE = _State()


@contextmanager
def memory_format(format: Format) -> Iterator[None]:  # noqa: A002 (torch's name)
    """Choose the memory format of the maps that convolutions on CPUs return, for the time of a ``with`` statement.

    ``"auto"``, the default, is the faster one of this machine, which :func:`build_kernels` measures once;
    ``"planes"`` is torch's default format.
    """
    if format not in get_args(Format):
        raise ValueError(f"memory_format expects one of {', '.join(get_args(Format))}, got {format!r}.")
    before, _STATE.format = _STATE.format, format
    try:
        yield
    finally:
        _STATE.format = before


def prefers_channels_last(x: Tensor) -> bool:
    """Return whether a convolution of this tensor should return a channels-last map."""
    if _STATE.format == "planes" or x.device.type != "cpu" or x.dtype not in TYPES or not HAS_OPERATORS:
        return False
    if decomposes(x):
        return False
    return _STATE.format == "channels_last" or has_faster_channels_last()


def has_faster_channels_last() -> bool:
    """Return whether channels-last is the faster format on this machine."""
    from coattend.functional._kernels import cpu

    return cpu.library() is not None and cpu.STATE.channels_last_is_faster


def is_channels_last(x: Tensor) -> bool:
    """Return whether an image or map (batch, planes..., height, width) is dense in channels-last format."""
    if x.ndim < 4 or x.numel() == 0:
        return False
    *planes, height, width = range(1, x.ndim)
    expected = 1
    for axis in (*reversed(planes), width, height, 0):
        if x.shape[axis] != 1 and x.stride(axis) != expected:
            return False
        expected *= x.shape[axis]
    return True


def channels_last(x: Tensor) -> Tensor:
    """Return an image or map in channels-last format, itself if it has it already."""
    if is_channels_last(x):
        return x
    return _outer_planes(_inner_planes(x).contiguous())


def empty_like(x: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
    """Return an empty tensor, of another shape if one is given, channels-last if the tensor is, else contiguous."""
    shape = tuple(x.shape) if shape is None else shape
    if not is_channels_last(x):
        return x.new_empty(shape)
    batch, *planes, height, width = shape
    return _outer_planes(x.new_empty((batch, height, width, *planes)))


def in_format_of(y: Tensor, x: Tensor) -> Tensor:
    """Return a tensor in the format that ``empty_like(x)`` has."""
    return channels_last(y) if is_channels_last(x) else y.contiguous()


def poses_first(x: Tensor) -> Tensor:
    """Return the planes of a map (batch, channels, group, height, width) as channels (pose, channel) of an image."""
    if decomposes(x) or not is_channels_last(x):
        return folded(x.transpose(1, 2))
    channels, poses = x.shape[1:3]
    index = [c * poses + g for g in range(poses) for c in range(channels)]
    return torch.ops.coattend.reorder(folded(x), index)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return the parts of a batch as one tensor, in the format they have."""
    if len(parts) == 1:
        return parts[0]
    if all(is_channels_last(part) for part in parts):
        return _outer_planes(torch.cat([_inner_planes(part) for part in parts]))
    return torch.cat(list(parts))


def folded(x: Tensor) -> Tensor:
    """Return the planes of an image or map as the channels of an image, in the format it has."""
    if x.ndim > 4 and x.stride(-1) > max(x.stride()[1:-2]):
        return _outer_planes(_inner_planes(x).flatten(3))
    return x.flatten(1, -3)


def _inner_planes(x: Tensor) -> Tensor:
    return x.permute(0, x.ndim - 2, x.ndim - 1, *range(1, x.ndim - 2))


def _outer_planes(x: Tensor) -> Tensor:
    return x.permute(0, *range(3, x.ndim), 1, 2)
