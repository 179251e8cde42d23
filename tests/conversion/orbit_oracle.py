"""The mean over all poses, from torch.rot90 and torch.flip alone: element 4 m + r mirrors m times, turns r times."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

ORDER = {"p4": 4, "p4m": 8}


def moved(x: Tensor, g: int) -> Tensor:
    return torch.rot90(torch.flip(x, (-1,)) if g >= 4 else x, g % 4, (-2, -1))


def moved_back(x: Tensor, g: int) -> Tensor:
    x = torch.rot90(x, -(g % 4), (-2, -1))
    return torch.flip(x, (-1,)) if g >= 4 else x


def orbit_mean(model: Callable[[Tensor], Tensor], x: Tensor, group: str, is_image: bool | None = None) -> Tensor:
    """Return the mean of g.f(g^-1 x), of f(g^-1 x) for logits."""
    with torch.no_grad():
        outputs = [model(moved_back(x, g).contiguous()) for g in range(ORDER[group])]
    is_image = outputs[0].ndim == 4 if is_image is None else is_image
    return torch.stack([moved(y, g) if is_image else y for g, y in enumerate(outputs)]).mean(0)


def assert_orbit_mean(model: nn.Module, network: nn.Module, x: Tensor, group: str, tolerance: float) -> None:
    """Require the orbit mean, and that it does not depend on the pose of the image."""
    expected = orbit_mean(model, x, group)
    scale = expected.abs().max()
    with torch.no_grad():
        for g in range(ORDER[group]):
            y = network(moved(x, g).contiguous())
            actual = moved_back(y, g) if y.ndim == 4 else y
            assert (actual - expected).abs().max() <= tolerance * scale, f"element {g}"


def with_statistics(model: nn.Module, x: Tensor) -> nn.Module:
    """Give batch norms the statistics of some images, so that activations have a usual size; return it in eval mode."""
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        model.train()(x)
        for parameter in model.parameters():
            if parameter.ndim in (1, 3):  # norms, biases and layer scales, which start at 0, 1 or nearly 0
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()
