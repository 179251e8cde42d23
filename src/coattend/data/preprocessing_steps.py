"""The steps of preprocessing: each sees float64 images from 0 to 1, or what the step before made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

Chunks = Callable[[], Iterator[Tensor]]  # the training images, a chunk at a time, as often as asked for

SMALLEST = 1e-8  # a spread below this is no spread: the values are equal
SINGULAR_BIAS = 1e-5  # added to the singular values
BLOCK = 512  # columns of the covariance made at once


class Step:
    """One map of images (n, channels, height, width) to images; ``state`` is what was learnt from the training part."""

    commutes_with_rotation = True
    learnt: tuple[str, ...] = ()  # names in state

    def __init__(self) -> None:
        self.state: dict[str, Tensor] = {}

    def fit(self, chunks: Chunks) -> None:
        """Learn from the training images."""

    def apply(self, x: Tensor) -> Tensor:
        """Transform a chunk."""
        raise NotImplementedError


class Standardise(Step):
    """Subtract the training mean and divide by the training standard deviation, both taken over some axes."""

    learnt = ("mean", "std")

    def __init__(self, axes: tuple[int, ...]) -> None:
        super().__init__()
        self.axes = axes
        self.commutes_with_rotation = {2, 3} <= set(axes)

    def fit(self, chunks: Chunks) -> None:
        """Two passes: the one-pass formula leaves rounding where a pixel never varies."""
        mean = _mean(chunks, lambda x: x, self.axes)
        std = _mean(chunks, lambda x: (x - mean).square(), self.axes).sqrt()
        self.state = {"mean": mean, "std": std.where(std > SMALLEST, 1.0)}

    def apply(self, x: Tensor) -> Tensor:
        """Standardise."""
        mean, std = self.state["mean"].to(x.device), self.state["std"].to(x.device)
        _check_shape(x, tuple(x.shape[axis] if mean.shape[axis] == 1 else mean.shape[axis] for axis in (1, 2, 3)))
        return (x - mean) / std


class ContrastNormalise(Step):
    """Per image: subtract the mean, divide by the standard deviation (ddof 1) or by the L2 norm over a scale."""

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.scale = scale

    def apply(self, x: Tensor) -> Tensor:
        """Normalise."""
        x = x - x.mean((1, 2, 3), keepdim=True)
        norm = x.square().sum((1, 2, 3), keepdim=True).sqrt()
        spread = norm / (x[0].numel() - 1) ** 0.5 if self.scale is None else norm / self.scale
        return x / spread.where(spread > SMALLEST, 1.0)


class StandardiseImageChannels(Step):
    """Per image and channel: mean 0 and standard deviation 1 over the pixels."""

    def apply(self, x: Tensor) -> Tensor:
        """Standardise."""
        x = x - x.mean((2, 3), keepdim=True)
        std = x.square().mean((2, 3), keepdim=True).sqrt()
        return x / std.where(std > SMALLEST, 1.0)


class Whiten(Step):
    """ZCA: centre, then multiply by U f(s) U^T, where U s^2 U^T is the covariance of the training images.

    Without a bias f(s) = 1 / (s + 1e-5), as G-CNN's code has it; with one, 1 / sqrt(s^2 + bias), as pylearn2's.
    """

    commutes_with_rotation = False
    learnt = ("mean", "matrix")

    def __init__(self, bias: float | None = None) -> None:
        super().__init__()
        self.bias = bias

    def fit(self, chunks: Chunks) -> None:
        """One pass, in float64: small singular values need it. Only the upper triangle of the covariance is made."""
        first = next(chunks())
        shift = first.mean(0, keepdim=True)  # near the mean, so that taking the rest off later costs no digits
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
        mean = shift + rest.view_as(shift)
        scatter.addr_(rest, rest, alpha=-count)
        scatter /= max(count - 1, 1) if self.bias is None else count
        variance, vectors = torch.linalg.eigh(scatter, UPLO="U")
        variance = variance.clamp_min(0)
        factor = 1 / (variance.sqrt() + SINGULAR_BIAS) if self.bias is None else (variance + self.bias).rsqrt()
        self.state = {"mean": mean, "matrix": (vectors * factor) @ vectors.T}

    def apply(self, x: Tensor) -> Tensor:
        """Whiten."""
        mean, matrix = self.state["mean"].to(x.device), self.state["matrix"].to(x.device)
        _check_shape(x, tuple(mean.shape[1:]))
        return ((x - mean).flatten(1) @ matrix).view(x.shape)


class Clip(Step):
    """Limit values to -bound..bound."""

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound = bound

    def apply(self, x: Tensor) -> Tensor:
        """Clip."""
        return x.clamp(-self.bound, self.bound)


class ClipPercentile(Step):
    """Limit values to -bound..bound, where the bound is a percentile of the training values."""

    learnt = ("bound",)

    def __init__(self, percent: float) -> None:
        super().__init__()
        self.percent = percent

    def fit(self, chunks: Chunks) -> None:
        """Exact, in float32: all training values lie in memory at once."""
        values = np.concatenate([x.float().flatten().cpu().numpy() for x in chunks()])
        place = int(self.percent / 100 * (len(values) - 1))
        values.partition(place)
        self.state = {"bound": torch.tensor(abs(float(values[place])), dtype=torch.float64)}

    def apply(self, x: Tensor) -> Tensor:
        """Clip."""
        bound = float(self.state["bound"])
        return x.clamp(-bound, bound)


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
            f"this preprocessing was fitted on images {expected}, got {tuple(x.shape[1:])}; resize them or fit anew."
        )
