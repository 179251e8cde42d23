"""Self-attention along the positions, in the frame of each pose.

Every pose attends on its own, with rotary positions that turn with it: as many ordinary heads as there are poses and
heads, without a tensor whose size is the square of poses times positions.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.functional.checks import MAP, check_group, check_one_device, check_planar_group, check_tensor
from coattend.groups import FiniteGroup

QUERIES = 256


def group_self_attention(
    q: Tensor, k: Tensor, v: Tensor, frequencies: Tensor, group: FiniteGroup, window: int | None = None
) -> Tensor:
    """Attend along the positions of each pose, with rotary positions in its frame.

    ``y[g](u) = sum_w softmax_w( q[g](u)^T R(g^-1 (w - u)) k[g](w) / sqrt(d) ) v[g](w)`` for each head, where R turns
    each pair of channels by its frequency times the offset. Offsets are in pixels, x to the right and y up.

    Args:
        q, k, v: maps (batch, heads * d, group, height, width) with an even d.
        frequencies: (heads, d / 2, 2), in radians per pixel.
        group: the group of the third axis, with a planar action.
        window: attend within windows of this height and width, which have to cover the map; None for the whole map.

    Returns a map of the shape of v.

    >>> from coattend.groups import cyclic
    >>> q, k, v = torch.zeros(3, 2, 16, 4, 6, 6)
    >>> group_self_attention(q, k, v, torch.ones(4, 2, 2), cyclic(4)).shape
    torch.Size([2, 16, 4, 6, 6])
    """
    name = "group_self_attention"
    check_group(name, group)
    check_planar_group(name, group)
    for key, x in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, key, x, MAP, 5)
    check_tensor(name, "frequencies", frequencies, "(heads, d / 2, 2)", 3)
    heads, pairs, axes = frequencies.shape
    if not (q.shape == k.shape == v.shape and v.shape[1:3] == (2 * heads * pairs, group.order) and axes == 2):
        raise ValueError(
            f"{name} expects three maps of equal shape with {2 * heads * pairs} channels and {group.order} poses for "
            f"frequencies {tuple(frequencies.shape)} and {group.name}, got {tuple(q.shape)}, {tuple(k.shape)} and "
            f"{tuple(v.shape)}; pass frequencies (heads, d / 2, 2)."
        )
    check_one_device(name, q, k, v, frequencies)
    check_window(name, v, window)
    return attend_positions(torch.stack((q, k, v), dim=1), turned_frequencies(frequencies, group), window)


def turned_frequencies(frequencies: Tensor, group: FiniteGroup) -> Tensor:
    """Return the frequencies in the frame of every pose, since ``f . g^-1 u = g f . u``: (group, heads, d / 2, 2)."""
    if group.planar is None:
        raise ValueError(
            f"{group.name} is a bare table: it does not say how its elements move positions. Pass FiniteGroup(table, "
            "planar=...) with an orthogonal 2 x 2 matrix per element, or use cyclic(n) or dihedral(n)."
        )
    matrices = torch.tensor(group.planar, dtype=frequencies.dtype, device=frequencies.device)
    return torch.einsum("gij,hpj->ghpi", matrices, frequencies)


def attend_positions(qkv: Tensor, frequencies: Tensor, window: int | None) -> Tensor:
    """Compute :func:`group_self_attention` with the frequencies of every pose.

    qkv: (batch, 3, heads * d, group, height, width); frequencies: (group, heads, d / 2, 2).
    """
    y = F.scaled_dot_product_attention(*rotated_tokens(qkv, frequencies, window))
    return from_tokens(y, window, (*frequencies.shape[:2], *qkv.shape[-2:]))


def received_attention(qkv: Tensor, frequencies: Tensor, window: int | None) -> Tensor:
    """Return how much attention each position gets in its pose from each head, relative to even attention.

    See :func:`attend_positions`; a mean over all positions that attend, (batch, heads, group, height, width).
    """
    q, k, _ = rotated_tokens(qkv, frequencies, window)
    received = k.new_zeros(k.shape[:-1])
    for some in q.split(QUERIES, dim=2):  # all at once would be the square of the positions
        received += torch.softmax(some @ k.mT / math.sqrt(k.shape[-1]), dim=-1).sum(2)
    return from_tokens(received.unsqueeze(-1), window, (*frequencies.shape[:2], *qkv.shape[-2:]))


def rotated_tokens(qkv: Tensor, frequencies: Tensor, window: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries and keys with rotary positions, and values, as :func:`tokens`."""
    q, k, v = qkv.unflatten(2, (frequencies.shape[1], -1)).permute(1, 0, 4, 2, 5, 6, 3)  # b g heads h w d
    height, width = qkv.shape[-2:]
    cosine, sine = rotations(frequencies, height, width, v.dtype)
    q, k = rotated(q, cosine, sine), rotated(k, cosine, sine)
    return tokens(q, window), tokens(k, window), tokens(v, window)


def rotations(frequencies: Tensor, height: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of the phase at each position, counted from the center: (group, heads, h, w, d / 2).

    Quarter turns and flips permute the phases, so that they change nothing but the order of positions and poses.
    """
    wide = torch.promote_types(frequencies.dtype, torch.float32)
    x = torch.arange(width, device=frequencies.device, dtype=wide) - (width - 1) / 2
    y = (height - 1) / 2 - torch.arange(height, device=frequencies.device, dtype=wide)
    turned = frequencies.to(wide)[:, :, None, None]  # g heads 1 1 pairs 2
    phases = turned[..., 0] * x[:, None] + turned[..., 1] * y[:, None, None]
    return phases.cos().to(dtype), phases.sin().to(dtype)


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn the pairs (i, i + d / 2) of the last axis."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1)


def tokens(x: Tensor, window: int | None) -> Tensor:
    """Return the positions of each window as one axis: b g heads h w d -> (b windows) (g heads) positions d."""
    if window is None:
        return x.flatten(3, 4).flatten(1, 2)
    parts = x.unflatten(4, (-1, window)).unflatten(3, (-1, window))  # b g heads i y j x d
    return parts.permute(0, 3, 5, 1, 2, 4, 6, 7).flatten(5, 6).flatten(3, 4).flatten(0, 2)


def from_tokens(y: Tensor, window: int | None, shape: tuple[int, int, int, int]) -> Tensor:
    """Return the map that :func:`tokens` split: (b windows) (g heads) positions d -> b (heads d) g h w."""
    order, heads, height, width = shape
    if window is None:
        by_position = y.unflatten(2, (height, width)).unflatten(1, (order, heads))  # b g heads h w d
        return by_position.permute(0, 2, 5, 1, 3, 4).flatten(1, 2)
    rows, columns = height // window, width // window
    parts = y.unflatten(2, (window, window)).unflatten(1, (order, heads)).unflatten(0, (-1, rows, columns))
    return parts.permute(0, 4, 7, 3, 1, 5, 2, 6).flatten(6, 7).flatten(4, 5).flatten(1, 2)


def check_window(owner: str, x: Tensor, window: int | None) -> None:
    """Require a map that windows cover, so that turns move windows onto windows."""
    height, width = x.shape[-2:]
    if window is not None and (window < 1 or height % window or width % window):
        raise ValueError(
            f"{owner} attends within windows of {window} x {window}, which have to cover the map of {height} x "
            f"{width}; pad the map, choose a window that divides both, or window=None."
        )
