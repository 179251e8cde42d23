"""Linear maps between the channels and poses of a map, the same at every position: 1x1 group convolutions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.functional.checks import check_group, check_one_device, check_table, check_tensor, select
from coattend.functional.kept_index import kept_index
from coattend.groups import FiniteGroup


def pose_linear(x: Tensor, weight: Tensor, group: FiniteGroup, groups: int = 1) -> Tensor:
    """Combine channels and poses: ``y[o, g] = sum_i sum_h x[i, h] weight[o, i, g^-1 h]``, without a planar action.

    Args:
        x: a map (batch, in, group, positions...).
        weight: (out, in / groups, group).
        group: the group of the third axis.
        groups: the number of groups of channels that are combined separately.

    Returns a map (batch, out, group, positions...).

    >>> from coattend.groups import cyclic
    >>> pose_linear(torch.zeros(2, 3, 4, 5, 5), torch.zeros(6, 3, 4), cyclic(4)).shape
    torch.Size([2, 6, 4, 5, 5])
    """
    check_group("pose_linear", group)
    check_tensor("pose_linear", "x", x, "(batch, channels, group, positions...)", 3, or_more=True)
    check_tensor("pose_linear", "weight", weight, "(out, in / groups, group)", 3)
    check_one_device("pose_linear", x, weight)
    fits = x.shape[2] == weight.shape[2] == group.order and x.shape[1] == groups * weight.shape[1]
    if not fits or len(weight) % groups:
        raise ValueError(
            f"pose_linear expects a weight (out, {x.shape[1]} / {groups}, {group.order}) with a multiple of {groups} "
            f"outputs for {group.name} and x {tuple(x.shape)}, got {tuple(weight.shape)}."
        )
    return apply_bank(x, pose_bank(weight, relative_table(group).to(weight.device)), groups)


def relative_table(group: FiniteGroup) -> Tensor:
    """Return ``relative[g, h] = g^-1 h``."""
    return torch.tensor(group.relative)


def pose_bank(weight: Tensor, relative: Tensor) -> Tensor:
    """Return the matrix of a linear map, ``bank[o, g, i, h] = weight[o, i, relative[g, h]]``: o i t -> (o g) (i h)."""
    check_table("pose_bank", "relative", relative, "(group, group)", 2)
    ins, slices = weight.shape[1:]

    def index() -> Tensor:
        places = torch.arange(ins * slices, device=relative.device).view(ins, slices)
        return select("pose_bank", places, 1, relative).unflatten(1, relative.shape).transpose(0, 1)  # g i h

    key = "pose_bank", ins, slices
    numbers = select("pose_bank", weight.flatten(1), 1, kept_index(relative, relative, key, index))
    return numbers.reshape(-1, ins * relative.shape[1])


def apply_bank(x: Tensor, bank: Tensor, groups: int = 1) -> Tensor:
    """Apply a matrix (out * group, in / groups * group) to every position of a map (batch, in, group, positions...)."""
    planes = x.flatten(1, 2)
    if planes.ndim != 4:  # one convolution serves any number of axes
        planes = (planes.flatten(2) if planes.ndim > 2 else planes.unsqueeze(-1)).unsqueeze(-1)
    y = F.conv2d(planes, bank[:, :, None, None], groups=groups).unflatten(1, (-1, x.shape[2]))
    return y if x.ndim == 5 else y.reshape(x.shape[0], -1, *x.shape[2:])
