"""Blocks of poses, as which a group convolution over some relative poses computes only what these need.

Output pose g reads the input poses g t, t in T. Let H be the elements with hT = T. All output poses of a left coset aH
then read the same input poses aT, so the convolution consists of order / |H| blocks of |H| output poses by |T| input
poses, which are channel groups of one plain convolution.

Letters of axes: n block, h and t output and input pose within it, c channel group, o and i output and input channel
within that, k tap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coattend.functional.checks import check_group
from coattend.groups import FiniteGroup


@dataclass(frozen=True)
class PoseBlocks:
    """The blocks of a restricted group convolution, as index tables.

    - inputs: (n, t), the input poses a t that a block reads
    - outputs: (n, h), the output poses a h that a block writes
    - slices: (h, t), the position in T of the relative pose h^-1 t
    """

    inputs: Tensor
    outputs: Tensor
    slices: Tensor

    def input_planes(self, channels: int, groups: int = 1) -> Tensor:
        """Return the planes of a flattened map, (c i) pose, in the order that the blocks read: (n c t i)."""
        first_plane = self.outputs.numel() * torch.arange(channels).reshape(groups, 1, -1)  # c 1 i
        return (first_plane + self.inputs[:, None, :, None]).flatten()

    def output_planes(self, channels: int, groups: int = 1) -> Tensor:
        """Return where each plane of a flattened map, (c o) pose, is in what the blocks write: (n c h o)."""
        blocks, poses = self.outputs.shape
        planes = torch.arange(blocks * channels * poses).reshape(blocks, groups, poses, channels // groups)  # n c h o
        by_channel = planes.permute(1, 3, 0, 2).reshape(channels, blocks * poses)  # (c o) (n h)
        return by_channel[:, self.outputs.flatten().argsort()].flatten()

    def filters(self, bank: Tensor, groups: int = 1) -> Tensor:
        """Return turned slices, (c o) i n h t k k, as filters of a plain convolution with n c channel groups."""
        grouped = bank.unflatten(0, (groups, -1))  # c o i n h t k k
        ordered = grouped.permute(3, 0, 4, 1, 5, 2, 6, 7)  # n c h o t i k k
        return ordered.flatten(4, 5).flatten(0, 3)  # (n c h o) (t i) k k

    def biases(self, bias: Tensor, groups: int = 1) -> Tensor:
        """Return a bias per channel, (c o), as one per plane that the blocks write, (n c h o)."""
        blocks, poses = self.outputs.shape
        return bias.unflatten(0, (groups, 1, -1)).expand(blocks, groups, poses, -1).flatten()


def pose_blocks(group: FiniteGroup, relative: tuple[int, ...]) -> PoseBlocks:
    """Return the blocks of a group convolution over the relative poses ``relative``, in this order.

    >>> from coattend.groups import get_group
    >>> pose_blocks(get_group("p4"), (1, 3)).inputs.tolist()
    [[1, 3], [2, 0]]
    """
    check_group("pose_blocks", group)
    if (
        not isinstance(relative, tuple)
        or not all(isinstance(t, (int, np.integer)) and not isinstance(t, bool) for t in relative)
        or not relative
        or len(set(relative)) < len(relative)
        or not set(relative) <= set(group.elements)
    ):
        raise ValueError(
            f"pose_blocks expects a tuple of different elements of {group.name}, numbers from 0 to {group.order - 1}, "
            f"at least one, got {relative!r}; tuple(group.elements) is the whole group."
        )
    product, poses = group.product, np.array(relative)
    position = np.zeros(group.order, dtype=np.int64)
    position[poses] = np.arange(len(poses))
    stabilizer = [h for h in group.elements if set(product[h, poses].tolist()) == set(relative)]
    representatives = group.left_cosets(stabilizer)[:, 0]
    return PoseBlocks(
        inputs=torch.tensor(product[representatives][:, poses]),
        outputs=torch.tensor(product[representatives][:, stabilizer]),
        slices=torch.tensor(position[product[group.inverse[stabilizer]][:, poses]]),
    )


def blocks_are_faster(blocks: PoseBlocks, in_channels: int, out_channels: int, kernel_size: int) -> bool:
    """Return whether blocks are faster than one convolution with zeros for the other poses.

    A rule of thumb from measurements (docs/restriction.md), with channels per channel group: convolutions in channel
    groups are fast where each group has a multiple of eight planes, the width of a register, and at least sixteen to
    write. A 1x1 convolution is one matrix product, which several smaller ones rarely beat.
    """
    if kernel_size == 1:
        return False
    number, outputs = blocks.outputs.shape
    read, written = blocks.inputs.shape[1] * in_channels, outputs * out_channels
    share = blocks.inputs.shape[1] / (number * outputs)
    return share <= 1 / 8 or (read % 8 == 0 and written % 8 == 0 and written >= 16)
