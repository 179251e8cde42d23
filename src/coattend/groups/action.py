"""How a group element moves an image and a map on the group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.groups.axes import axis_names, directions
from coattend.groups.filter_action import Interpolation
from coattend.groups.finite_group import FiniteGroup, Matrices, is_signed_permutation
from coattend.groups.named import get_group


def transform_image(x: Tensor, group: FiniteGroup | str, g: int, interpolation: Interpolation = "bicubic") -> Tensor:
    """Move the spatial axes of ``x``, the last d, by element g: ``(g.x)(u) = x(g^-1 u)``.

    d is the dimension of the group's action: 2 for images, 1 for signals, 3 for volumes. Elements whose matrices are
    signed permutations, such as quarter turns and flips, are exact, also where the axes differ in length. Other angles,
    for images only, keep the frame, turn about its center, interpolate, and read zeros outside. A group without an
    action leaves images alone.
    """
    group = get_group(group)
    names = axis_names(group.dimension)
    _check_axes(x, len(names), f"an image (..., {', '.join(names)})")
    if group.action is None:
        return x
    matrix = group.action[group.verified_element(g)]
    if is_signed_permutation(matrix):
        return _permuted(x, matrix)
    if group.planar is None:
        raise ValueError(
            f"element {g} of {group.name} does not move voxels onto voxels, and interpolation is available in 2 "
            f"dimensions only, not in {group.dimension}; use group.exact_elements."
        )
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

    The spatial axes are those of :func:`transform_image`. With a subgroup K in ``over`` the group axis holds the left
    cosets aK instead of single elements.
    """
    group = get_group(group)
    names = axis_names(group.dimension)
    _check_axes(x, len(names) + 1, f"a map (..., group, {', '.join(names)})")
    sources = group.coset_action(over)[group.inverse[group.verified_element(g)]]
    axis = -len(names) - 1
    if x.shape[axis] != len(sources):
        raise ValueError(
            f"transform_map expects a group axis of {len(sources)} for {group.name}, got {tuple(x.shape)}; pass the "
            "group of the map, or over=K if the axis holds the left cosets of a subgroup K."
        )
    source = torch.tensor(sources, device=x.device)
    return transform_image(x.index_select(axis, source), group, g, interpolation)


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


def _permuted(x: Tensor, matrix: Matrices) -> Tensor:
    """Apply a signed permutation matrix: coordinate i of the result is coordinate ``source[i]`` of x, or minus it."""
    dimension = len(matrix)
    source = np.abs(matrix).argmax(axis=1)
    sign = np.take_along_axis(matrix, source[:, None], axis=1)[:, 0] * directions(dimension)[source]
    flipped = [-1 - i for i in range(dimension) if sign[i] != directions(dimension)[i]]
    batch = x.ndim - dimension
    axes = [*range(batch), *(x.ndim - 1 - int(source[i]) for i in reversed(range(dimension)))]
    return torch.flip(x.permute(axes), flipped)


def _interpolated(x: Tensor, inverse_matrix: Matrices, interpolation: str) -> Tensor:
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
