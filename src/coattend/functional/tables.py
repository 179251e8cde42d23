"""Index tables of convolutions on a group: computed once by a layer, or for a single call of a function."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coattend.functional.pose_blocks import PoseBlocks, pose_blocks
from coattend.groups import Filters, FiniteGroup, coset_turns


class Turns(NamedTuple):
    """How filters turn: the numbers of the filter are multiplied by maps, if any, and then permuted.

    - moves, maps: see :func:`coattend.groups.coset_turns`
    """

    moves: Tensor
    maps: Tensor | None = None

    @property
    def kernel_size(self) -> int:
        """The size of the kernel."""
        return math.isqrt(self.moves.shape[1])

    def to(self, device: torch.device) -> Turns:
        """Return the tables on a device."""
        return Turns(self.moves.to(device), None if self.maps is None else self.maps.to(device))


def turn_tables(group: FiniteGroup, kernel_size: int, filters: Filters) -> Turns:
    """Return how filters turn, on the CPU and in float64."""
    return Turns(*coset_turns(group, kernel_size, filters, torch.float64))


class BlockTables(NamedTuple):
    """Tables of a group convolution that is computed in blocks of poses, see :class:`PoseBlocks`.

    - slices, poses: (n, h, t), the slice of the filter and its pose for every output and input pose of a block
    - input_planes, output_planes: the orders of planes that the blocks read and write
    """

    layout: PoseBlocks
    slices: Tensor
    poses: Tensor
    input_planes: Tensor
    output_planes: Tensor


class GroupTables(NamedTuple):
    """Tables of a group convolution.

    - relative: (group, group), the slice of the filter for output pose g and input pose h, that of g^-1 h; for a
      relative pose that the filter does not cover, the number of slices
    - blocks: for a filter that does not cover all relative poses, unless all pairs of poses are computed
    """

    turns: Turns
    relative: Tensor
    blocks: BlockTables | None


class SliceTables(NamedTuple):
    """Tables of a slice-attentive convolution, see :func:`slice_tables`."""

    turns: Turns
    poses: Tensor
    rows: list[int]


def group_tables(
    group: FiniteGroup,
    kernel_size: int,
    relative: tuple[int, ...],
    in_channels: int,
    out_channels: int,
    groups: int,
    filters: Filters,
) -> GroupTables:
    """Return the tables of a group convolution over the relative poses ``relative``, on the CPU and in float64."""
    turns = turn_tables(group, kernel_size, filters)
    slices = np.full(group.order, len(relative))
    slices[list(relative)] = np.arange(len(relative))
    table = torch.tensor(slices[group.relative])
    if len(relative) == group.order:
        return GroupTables(turns, table, None)
    layout = pose_blocks(group, relative)
    poses = layout.outputs[:, :, None].expand(-1, -1, len(relative))
    blocks = BlockTables(
        layout,
        layout.slices.expand_as(poses),
        poses,
        layout.input_planes(in_channels, groups),
        layout.output_planes(out_channels, groups),
    )
    return GroupTables(turns, table, blocks)


def slice_tables(
    group: FiniteGroup,
    kernel_size: int,
    relative: tuple[int, ...],
    out_channels: int,
    filters: Filters,
) -> SliceTables:
    """Return the tables of a slice-attentive convolution, on the CPU and in float64.

    Output pose g reads input pose h = g t through slice t. Input pose h therefore contributes to the output poses
    g = h t^-1, one for each slice: ``poses[h, t] = h t^-1``, the pose of the slice in the filter that reads h. The
    convolution has one channel group per input pose and returns planes in the order (h o t). So the response of slice
    t for output pose g is plane ``rows[t, g] = (g t) * out_channels * slices + t`` of channel 0, and those of the
    following channels are ``slices`` planes apart.
    """
    slices = np.array(relative)
    poses = group.product[:, group.inverse[slices]]  # h t
    input_poses = group.product[:, slices].T  # t g
    rows = input_poses * (out_channels * len(slices)) + np.arange(len(slices))[:, None]  # t g
    turns = turn_tables(group, kernel_size, filters)
    return SliceTables(turns, torch.tensor(poses), rows.ravel().tolist())
