"""Convolutions with filters that are generated from the features at each position, in the pose of the features.

This is attention inside the convolution ([RH20] section 6): the efficient equivariant networks of He et al. (2021) and,
with coefficients of a steerable basis, neural partial differential operators (He et al., 2022).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.functional.attention import without_autocast
from coattend.functional.checks import MAP, check_one_device, check_parameters, check_tensor
from coattend.functional.dispatch import decomposes
from coattend.functional.filter_bank import turn_filters
from coattend.functional.tables import Turns, turn_tables
from coattend.groups import Filters, FiniteGroup


def dynamic_group_conv2d(
    v: Tensor,
    z: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    group: FiniteGroup,
    filters: Filters = "free",
    *,
    kernel_size: int | None = None,
    turns: Turns | None = None,
) -> Tensor:
    """Correlate each position of a map with a filter of its own, generated from a second map and turned with the pose.

    ``y[c, g](u) = sum_d kappa[s(c), g^-1 d, g](u) v[c, g](u + d)`` with the generated filters
    ``kappa[s, d, g](u) = sum_m weight[s, m, d] z[m, g](u) + bias[s, d]``. Channels are split into as many slices of
    equal size as the weight has; ``s(c)`` is the slice of channel c. Beyond the border v is zero.

    Args:
        v: the map to filter (batch, channels, group, height, width).
        z: the map that generates the filters (batch, hidden, group, height, width).
        weight: (slices, hidden, k, k) with an odd k, or (slices, hidden, coefficients) of steerable filters.
        bias: (slices, k, k), or (slices, coefficients), or None.
        group: the group of the third axis.
        filters, kernel_size: see :func:`lifting_conv2d`.
        turns: the tables of :func:`coattend.functional.tables.turn_tables`, if they are at hand.

    Returns a map of the shape of v.

    >>> from coattend.groups import cyclic
    >>> v, z = torch.zeros(2, 16, 4, 14, 14), torch.zeros(2, 8, 4, 14, 14)
    >>> dynamic_group_conv2d(v, z, torch.zeros(2, 8, 5, 5), None, cyclic(4)).shape
    torch.Size([2, 16, 4, 14, 14])
    """
    if turns is None:
        name = "dynamic_group_conv2d"
        k = check_parameters(name, weight, None, group, 4, filters, kernel_size)
        _check_maps(name, v, z, weight, bias, group.order, k)
        turns = turn_tables(group, k, filters).to(weight.device)
    return filter_positions(v, z, generating_bank(weight, bias, turns))


def generating_bank(weight: Tensor, bias: Tensor | None, turns: Turns) -> Tensor:
    """Return what generates the filters in every pose, ``bank[m, s, d, g] = (g.weight[s, m])(d)``, the bias last.

    s m k k -> (m + 1) s (k k) g
    """
    offset = torch.zeros_like(weight[:, :1]) if bias is None else bias.unsqueeze(1).to(weight.dtype)
    turned = turn_filters(torch.cat((weight, offset), dim=1), turns)  # s m g k k
    return turned.flatten(3).permute(1, 0, 3, 2)


class ContextNorm(NamedTuple):
    """A norm of the context per image and channel, over poses and positions, that a ReLU follows.

    weight, bias: (hidden,).
    """

    weight: Tensor
    bias: Tensor
    eps: float


def filter_positions(v: Tensor, z: Tensor, bank: Tensor, norm: ContextNorm | None = None) -> Tensor:
    """Return ``y[c, g](u) = sum_d kappa[s(c), d, g](u) v[c, g](u + d)`` for filters in the pose of the features.

    Args:
        v: (batch, channels, group, height, width).
        z: (batch, hidden, group, height, width); without channels the filters are the same everywhere.
        bank: (hidden + 1, slices, k * k, group), see :func:`generating_bank`.
        norm: takes ``ReLU(norm(z))`` in place of z, without saving it for the backward pass.
    """
    if decomposes(v):
        return filter_formula(v, z, bank, norm)
    return torch.ops.coattend.filter_positions(v, z, bank, *(norm or ()))


def generated_filters(z: Tensor, bank: Tensor) -> Tensor:
    """Return ``kappa[s, d, g](u) = sum_m bank[m, s, d, g] z[m, g](u) + bank[-1, s, d, g]``: b s (k k) g h w.

    Computed in float32 for narrower types, under autocast too. Without channels in z height and width are 1.
    """
    return without_autocast(_generated, z, bank)


def filter_formula(v: Tensor, z: Tensor, bank: Tensor, norm: ContextNorm | None = None) -> Tensor:
    """Compute :func:`filter_positions` offset by offset."""
    return without_autocast(_filtered, v, z if norm is None else without_autocast(_normalized, z, *norm), bank)


def filter_gradients(
    grad: Tensor, v: Tensor, z: Tensor, bank: Tensor, norm: ContextNorm | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of :func:`filter_formula` for v, z and the bank, and for weight and bias of the norm.

    Without a norm the last two are empty.
    """
    if norm is None:
        return *without_autocast(_gradients, grad, v, z, bank), z.new_empty(0), z.new_empty(0)
    context = without_autocast(_normalized, z, *norm)
    grad_v, grad_context, grad_bank = without_autocast(_gradients, grad, v, context, bank)
    above = torch.where(context > 0, grad_context, 0)
    grad_z, grad_weight, grad_bias = without_autocast(_norm_gradients, above, z, *norm)
    return grad_v, grad_z, grad_bank, grad_weight, grad_bias


def _normalized(z: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    wide = torch.promote_types(z.dtype, torch.float32)
    return F.group_norm(z.to(wide), z.shape[1], weight.to(wide), bias.to(wide), eps).relu()


def _norm_gradients(
    above: Tensor, z: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    axes, wide = (2, 3, 4), z.to(above.dtype)
    variance, mean = torch.var_mean(wide, axes, correction=0, keepdim=True)
    deviation = torch.rsqrt(variance + eps)
    normalized = (wide - mean) * deviation
    grad_weight, grad_bias = (normalized * above).sum((0, *axes)), above.sum((0, *axes))
    centred = above - above.mean(axes, keepdim=True) - normalized * (normalized * above).mean(axes, keepdim=True)
    grad_z = weight.to(wide.dtype)[:, None, None, None] * deviation * centred
    return grad_z.to(z.dtype), grad_weight.to(weight.dtype), grad_bias.to(bias.dtype)


def _generated(z: Tensor, bank: Tensor) -> Tensor:
    wide = torch.promote_types(z.dtype, torch.float32)
    offset = bank[-1].to(wide)[None, ..., None, None]
    if z.shape[1] == 0:
        return offset
    return torch.einsum("bmgyx,msdg->bsdgyx", z.to(wide), bank[:-1].to(wide)) + offset


def _filtered(v: Tensor, z: Tensor, bank: Tensor) -> Tensor:
    wide = torch.promote_types(v.dtype, torch.float32)
    kappa = _generated(z, bank).to(wide)
    k = math.isqrt(bank.shape[2])
    padded = F.pad(v.to(wide), (k // 2,) * 4).unflatten(1, (bank.shape[1], -1))  # b s c g h w
    y = torch.zeros_like(v, dtype=wide).unflatten(1, (bank.shape[1], -1))
    for offset, window in enumerate(_windows(k, *v.shape[-2:])):
        y = y + kappa[:, :, None, offset] * padded[window]
    return y.flatten(1, 2).to(v.dtype)


def _gradients(grad: Tensor, v: Tensor, z: Tensor, bank: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    wide = torch.promote_types(v.dtype, torch.float32)
    kappa = _generated(z, bank).to(wide)
    k = math.isqrt(bank.shape[2])
    padded, above = (
        F.pad(t.to(wide), (k // 2,) * 4).unflatten(1, (bank.shape[1], -1)) for t in (v, grad)
    )  # b s c g h w
    windows = _windows(k, *v.shape[-2:])
    by_slice = grad.to(wide).unflatten(1, (bank.shape[1], -1))
    grad_kappa = torch.stack([(by_slice * padded[window]).sum(2) for window in windows], dim=2)  # b s d g h w
    # v(u + d) contributes to y(u): from y at u, what v gets is that of the opposite offset.
    wide_kappa = F.pad(kappa.expand_as(grad_kappa), (k // 2,) * 4)
    grad_v = torch.zeros_like(by_slice)
    for offset, opposite in enumerate(reversed(windows)):
        grad_v = grad_v + wide_kappa[:, :, None, offset][opposite] * above[opposite]
    grad_rows = torch.einsum("bmgyx,bsdgyx->msdg", z.to(wide), grad_kappa)
    grad_bank = torch.cat((grad_rows, grad_kappa.sum((0, -2, -1))[None]))
    grad_z = torch.einsum("bsdgyx,msdg->bmgyx", grad_kappa, bank[:-1].to(wide))
    return grad_v.flatten(1, 2).to(v.dtype), grad_z.to(z.dtype), grad_bank.to(bank.dtype)


def _windows(k: int, height: int, width: int) -> list[tuple[Any, ...]]:
    """Return the part of a padded map that each tap of a filter reads."""
    return [(..., slice(i, i + height), slice(j, j + width)) for i in range(k) for j in range(k)]


def _check_maps(name: str, v: Tensor, z: Tensor, weight: Tensor, bias: Tensor | None, order: int, k: int) -> None:
    check_tensor(name, "v", v, MAP, 5)
    check_tensor(name, "z", z, "(batch, hidden, group, height, width)", 5)
    slices, hidden = weight.shape[:2]
    if k % 2 == 0:
        raise ValueError(f"{name} expects an odd kernel, so that the map keeps its size, got {k} x {k}.")
    fits = z.shape == (len(v), hidden, order, *v.shape[3:])
    if not fits or v.shape[2] != order or v.shape[1] % slices or v.shape[1] == 0:
        raise ValueError(
            f"{name} expects a map v with {order} poses and a multiple of {slices} channels, and a map z with {hidden} "
            f"channels and the same batch, poses and size, for a weight {tuple(weight.shape)}, got v {tuple(v.shape)} "
            f"and z {tuple(z.shape)}; let the weight have (slices, hidden, k, k) numbers."
        )
    if bias is not None:
        expected = (slices, *weight.shape[2:])
        check_tensor(name, "bias", bias, "(slices, k, k)", len(expected))
        if bias.shape != expected:
            raise ValueError(f"{name} expects a bias {expected}, one filter per slice, got {tuple(bias.shape)}.")
    check_one_device(name, v, z, weight, *(() if bias is None else (bias,)))
