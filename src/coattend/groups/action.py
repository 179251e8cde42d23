"""How a group element moves an image and a map on the group."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.groups.finite_group import FiniteGroup, quarter_turn


def transform_image(x: Tensor, group: FiniteGroup, g: int, interpolation: str = "bicubic") -> Tensor:
    """Move the last two axes of ``x`` by element g: ``(g.x)(u) = x(g^-1 u)``.

    Quarter turns and flips are exact and turn rectangles too. Other angles keep the frame, turn about its centre,
    interpolate, and take zeros from beyond the border. A group without a planar action leaves images alone.
    """
    if group.planar is None:
        return x
    exact = quarter_turn(group.planar[g])
    if exact is not None:
        mirrored, turns = exact
        return torch.rot90(torch.flip(x, (-1,)) if mirrored else x, turns, (-2, -1))
    return _interpolated(x, group.planar[g].T, interpolation)


def transform_map(
    x: Tensor, group: FiniteGroup, g: int, interpolation: str = "bicubic", over: Iterable[int] = (0,)
) -> Tensor:
    """Move a map (batch, channels, group, height, width): ``(g.x)[..., h, :, :] = g.(x[..., g^-1 h, :, :])``.

    With a subgroup K in ``over`` the group axis holds the left cosets aK instead of single elements.
    """
    source = torch.tensor(group.coset_action(over)[group.inverse[g]], device=x.device)
    return transform_image(x.index_select(-3, source), group, g, interpolation)


def _interpolated(x: Tensor, inverse_matrix: object, interpolation: str) -> Tensor:
    height, width = x.shape[-2:]
    rows = (height - 1) / 2 - torch.arange(height, dtype=x.dtype, device=x.device)
    columns = torch.arange(width, dtype=x.dtype, device=x.device) - (width - 1) / 2
    target = torch.stack(torch.broadcast_tensors(columns[None, :], rows[:, None]), dim=-1)  # x to the right, y up
    source = target @ torch.tensor(inverse_matrix, dtype=x.dtype, device=x.device).T
    # grid_sample counts y downwards and in units of half the image, pixel edges at -1 and 1.
    grid = source * torch.tensor([2 / width, -2 / height], dtype=x.dtype, device=x.device)
    flat = x.reshape(1, -1, height, width)
    turned = F.grid_sample(flat, grid[None], mode=interpolation, padding_mode="zeros", align_corners=False)
    return turned.reshape(x.shape)
