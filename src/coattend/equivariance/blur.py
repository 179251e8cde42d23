"""Restrict tensors to the part that interpolation moves accurately, for comparisons that need interpolation."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.equivariance.fields import Field

BLUR = 1.5  # standard deviation in pixels; ReLU over C8 and C32 then measures 0.01, without the blur 0.3


def smoothed_input(x: Tensor, field: Field) -> Tensor:
    """Return the input blurred, then faded out towards the rim of the inscribed disc.

    It holds no detail that the grid is too coarse to turn, so that a moved input has no artefacts of interpolation.
    """
    return _faded(_blurred(x)) if field.has_positions(x) else x


def compared_part(y: Tensor, field: Field) -> Tensor:
    """Return the part of an output that interpolation moves accurately: inside the inscribed disc, blurred.

    The function is linear and applied to both sides of a comparison, so that what commutes with interpolation is
    measured as exact.
    """
    return _blurred(_faded(y)) if field.has_positions(y) else y


def _faded(x: Tensor) -> Tensor:
    height, width = x.shape[-2:]
    y = torch.arange(height, dtype=torch.float64, device=x.device) - (height - 1) / 2
    z = torch.arange(width, dtype=torch.float64, device=x.device) - (width - 1) / 2
    radius = torch.hypot(y[:, None], z[None, :]) / (min(height, width) / 2)
    window = torch.cos((2 * radius - 1).clamp(0, 1) * torch.pi / 2) ** 2  # 1 up to half the radius, 0 at the rim
    return x * window.to(x.dtype)


def _blurred(x: Tensor) -> Tensor:
    reach = math.ceil(3 * BLUR)
    steps = torch.arange(-reach, reach + 1, dtype=torch.float64, device=x.device)
    bell = torch.exp(-((steps / BLUR) ** 2) / 2)
    weights = (bell / bell.sum()).to(torch.promote_types(x.dtype, torch.float32))
    planes = x.reshape(-1, 1, *x.shape[-2:]).to(weights.dtype)
    padded = F.pad(planes, (reach,) * 4, mode="replicate")
    blurred = F.conv2d(F.conv2d(padded, weights[None, None, :, None]), weights[None, None, None, :])
    return blurred.reshape(x.shape).to(x.dtype)
