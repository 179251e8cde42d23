"""How a group element moves an image and a map on the group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.groups.filter_action import Interpolation
from coattend.groups.finite_group import FiniteGroup, quarter_turn
from coattend.groups.named import get_group


def transform_image(x: Tensor, group: FiniteGroup | str, g: int, interpolation: Interpolation = "bicubic") -> Tensor:
    """Move the last two axes of ``x`` by element g: ``(g.x)(u) = x(g^-1 u)``.

    Quarter turns and flips are exact and turn rectangles too. Other angles keep the frame, turn about its centre,
    interpolate, and take zeros from beyond the border. A group without a planar action leaves images alone.
    """
    group = get_group(group)
    _check_axes(x, 2, "an image (..., height, width)")
    matrix = None if group.planar is None else group.planar[group.verified_element(g)]
    if matrix is None:
        return x
    exact = quarter_turn(matrix)
    if exact is not None:
        mirrored, turns = exact
        return torch.rot90(torch.flip(x, (-1,)) if mirrored else x, turns, (-2, -1))
    _check_interpolation(x, interpolation, group.describe(g))
    return _interpolated(x, matrix.T, interpolation)


def transform_map(
    x: Tensor,
    group: FiniteGroup | str,
    g: int,
    interpolation: Interpolation = "bicubic",
    over: Iterable[int] = (0,),
) -> Tensor:
    """Move a map (batch, channels, group, height, width): ``(g.x)[..., h, :, :] = g.(x[..., g^-1 h, :, :])``.

    With a subgroup K in ``over`` the group axis holds the left cosets aK instead of single elements.
    """
    group = get_group(group)
    _check_axes(x, 3, "a map (..., group, height, width)")
    sources = group.coset_action(over)[group.inverse[group.verified_element(g)]]
    if x.shape[-3] != len(sources):
        raise ValueError(
            f"transform_map expects a group axis of {len(sources)} for {group.name}, got {tuple(x.shape)}; pass the "
            "group of the map, or over=K if the axis holds the left cosets of a subgroup K."
        )
    source = torch.tensor(sources, device=x.device)
    return transform_image(x.index_select(-3, source), group, g, interpolation)


def _check_axes(x: Tensor, axes: int, expected: str) -> None:
    if not isinstance(x, Tensor):
        raise ValueError(f"expected {expected} as a tensor, got {type(x).__name__}.")
    if x.layout != torch.strided or x.is_nested or x.is_quantized:
        kind = "nested" if x.is_nested else "quantised" if x.is_quantized else str(x.layout)
        raise ValueError(f"expected {expected} as a dense tensor, got a {kind} one; convert it first.")
    if x.ndim < axes:
        raise ValueError(f"expected {expected} as a tensor, got {tuple(x.shape)}.")


def _check_interpolation(x: Tensor, interpolation: str, move: str) -> None:
    if interpolation not in get_args(Interpolation):
        raise ValueError(f"interpolation must be one of {get_args(Interpolation)}, got {interpolation!r}.")
    if not x.is_floating_point() or x.numel() == 0:
        raise ValueError(
            f"{move} interpolates between pixels: expected real numbers and at least one pixel, got {x.dtype} "
            f"{tuple(x.shape)}; convert the image (x.float())."
        )


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
