"""The steps of preprocessing, as modules whose buffers are computed from the training images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Chunks = Callable[[], Iterator[Tensor]]  # yields the training images chunk by chunk, as often as it is called

BLOCK = 512  # columns of the covariance computed at once
SMALLEST = 1e-8  # a standard deviation below this means that the values are equal
SINGULAR_BIAS = 1e-5  # added to the singular values


class Step(nn.Module):
    """Base class of the steps: maps images (n, channels, height, width) to images of the same shape.

    The first step receives values from 0 to 1, every other step the output of the one before. ``learnt`` names the
    buffers that :meth:`fit` computes; they are None before.
    """

    commutes_with_rotation = True
    needs_float64 = False
    learnt: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        for name in self.learnt:
            self.register_buffer(name, None)

    @property
    def is_fitted(self) -> bool:
        """Whether every learnt buffer has a value."""
        return all(getattr(self, name) is not None for name in self.learnt)

    def fit(self, chunks: Chunks) -> None:
        """Compute the learnt buffers from the training images."""

    def _load_from_state_dict(self, state_dict: Mapping[str, Tensor], prefix: str, *arguments: Any) -> None:
        """Load a state dict before ``fit`` too, when the shapes of the buffers are not known yet."""
        strict, missing_keys = arguments[1], arguments[2]
        for name in self.learnt:
            like: Tensor = torch.empty((), dtype=torch.float64) if getattr(self, name) is None else getattr(self, name)
            if prefix + name in state_dict:
                setattr(self, name, like.new_empty(state_dict[prefix + name].shape))
            elif strict and getattr(self, name) is None:
                missing_keys.append(prefix + name)
        super()._load_from_state_dict(state_dict, prefix, *arguments)


class Standardize(Step):
    """Subtract the training mean and divide by the training standard deviation, both computed over some axes."""

    learnt = ("mean", "std")
    mean: Tensor
    std: Tensor

    def __init__(self, axes: tuple[int, ...]) -> None:
        super().__init__()
        self.axes = axes
        self.commutes_with_rotation = {2, 3} <= set(axes)

    def fit(self, chunks: Chunks) -> None:
        """Use two passes: the one-pass formula leaves rounding errors where a pixel never varies."""
        mean = _mean(chunks, lambda x: x, self.axes)
        std = _mean(chunks, lambda x: (x - mean).square(), self.axes).sqrt()
        self.mean, self.std = mean, std.where(std > SMALLEST, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        """Standardize images."""
        _check_shape(x, tuple(x.shape[axis] if axis in self.axes else self.mean.shape[axis] for axis in (1, 2, 3)))
        return (x - self.mean) / self.std

    def extra_repr(self) -> str:
        """Return the axes."""
        return f"axes={self.axes}"


class NormalizeContrast(Step):
    """Subtract the mean of each image, then divide by its standard deviation (ddof 1) or by its L2 norm / scale."""

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """Normalize images."""
        x = x - x.mean((1, 2, 3), keepdim=True)
        norm = x.square().sum((1, 2, 3), keepdim=True).sqrt()
        spread = norm / (x.shape[1:].numel() - 1) ** 0.5 if self.scale is None else norm / self.scale
        return x / spread.where(spread > SMALLEST, 1.0)

    def extra_repr(self) -> str:
        """Return the scale."""
        return f"scale={self.scale}"


class StandardizeImageChannels(Step):
    """Give every channel of every image mean 0 and standard deviation 1."""

    def forward(self, x: Tensor) -> Tensor:
        """Standardize images."""
        x = x - x.mean((2, 3), keepdim=True)
        std = x.square().mean((2, 3), keepdim=True).sqrt()
        return x / std.where(std > SMALLEST, 1.0)


class Whiten(Step):
    """ZCA: subtract the mean, then multiply by U f(s) U^T, where U s^2 U^T is the covariance of the training images.

    Without a bias f(s) = 1 / (s + 1e-5), as in G-CNN's code; with one, 1 / sqrt(s^2 + bias), as in pylearn2.
    """

    commutes_with_rotation = False
    needs_float64 = True  # it multiplies by the inverses of small singular values
    learnt = ("mean", "matrix")
    mean: Tensor
    matrix: Tensor

    def __init__(self, bias: float | None = None) -> None:
        super().__init__()
        self.bias = bias

    def fit(self, chunks: Chunks) -> None:
        """Use float64, which small singular values need; only the upper triangle of the covariance is computed."""
        first = next(chunks())
        shift = first.mean(0, keepdim=True)  # close to the mean, so that subtracting the rest later costs no digits
        size = shift.numel()
        total = torch.zeros(size, dtype=torch.float64, device=first.device)
        scatter = torch.zeros(size, size, dtype=torch.float64, device=first.device)
        count = 0
        for x in chunks():
            shifted = (x - shift).flatten(1)
            total += shifted.sum(0)
            count += len(x)
            for left in range(0, size, BLOCK):
                scatter[left : left + BLOCK, left:].addmm_(shifted[:, left : left + BLOCK].T, shifted[:, left:])
        rest = total / count
        scatter.addr_(rest, rest, alpha=-count)
        scatter /= max(count - 1, 1) if self.bias is None else count
        variance, vectors = torch.linalg.eigh(scatter, UPLO="U")
        variance = variance.clamp_min(0)
        factor = 1 / (variance.sqrt() + SINGULAR_BIAS) if self.bias is None else (variance + self.bias).rsqrt()
        self.mean, self.matrix = shift + rest.view_as(shift), (vectors * factor) @ vectors.T

    def forward(self, x: Tensor) -> Tensor:
        """Whiten images."""
        _check_shape(x, tuple(self.mean.shape[1:]))
        return ((x - self.mean).flatten(1) @ self.matrix).view(x.shape)

    def extra_repr(self) -> str:
        """Return the bias."""
        return f"bias={self.bias}"


class Clip(Step):
    """Limit values to -bound..bound."""

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound = bound

    def forward(self, x: Tensor) -> Tensor:
        """Clip values."""
        return x.clamp(-self.bound, self.bound)

    def extra_repr(self) -> str:
        """Return the bound."""
        return f"bound={self.bound:g}"


class ClipPercentile(Step):
    """Limit values to -bound..bound, where the bound is a percentile of the training values."""

    learnt = ("bound",)
    bound: Tensor

    def __init__(self, percent: float) -> None:
        super().__init__()
        self.percent = percent

    def fit(self, chunks: Chunks) -> None:
        """Compute the exact percentile in float32, with all training values in memory at once."""
        values = np.concatenate([x.float().flatten().cpu().numpy() for x in chunks()])
        rank = int(self.percent / 100 * (len(values) - 1))
        values.partition(rank)
        self.bound = torch.tensor(abs(float(values[rank])), dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        """Clip values."""
        return x.clamp(-self.bound, self.bound)

    def extra_repr(self) -> str:
        """Return the percentile."""
        return f"percent={self.percent:g}"


def _mean(chunks: Chunks, function: Callable[[Tensor], Tensor], axes: tuple[int, ...]) -> Tensor:
    total, count = torch.zeros((), dtype=torch.float64), 0
    for x in chunks():
        summed = function(x).sum(axes, keepdim=True)
        total = total.to(x.device) + summed
        count += x.numel() // summed.numel()
    return total / count


def _check_shape(x: Tensor, expected: tuple[int, ...]) -> None:
    if tuple(x.shape[1:]) != expected:
        raise ValueError(
            f"this preprocessing was fitted on images {expected}, got {tuple(x.shape[1:])}; resize them or fit again."
        )
