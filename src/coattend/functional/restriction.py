"""Group convolutions over some relative poses only: what is left out is not computed.

Output pose g reads the input poses g t, t in T. Let H be the elements that leave T as it is, hT = T. All output poses
of a left coset aH then read the same input poses aT, so the convolution falls into order / |H| blocks of |H| output
poses by |T| input poses, which are channel groups of one plain convolution.
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

    - inputs: (blocks, |T|), the input poses a t that a block reads
    - outputs: (blocks, |H|), the output poses a h that it writes
    - slices: (|H|, |T|), where in T the relative pose h^-1 t of the two stands
    """

    inputs: Tensor
    outputs: Tensor
    slices: Tensor

    def input_planes(self, channels: int, groups: int = 1) -> Tensor:
        """The planes of a flattened map (channel, pose) in the order block, channel group, t, channel."""
        first = self.outputs.numel() * torch.arange(channels).reshape(groups, 1, -1)
        return (first + self.inputs[:, None, :, None]).flatten()

    def output_planes(self, channels: int, groups: int = 1) -> Tensor:
        """Where the plane of each (channel, pose) is, the blocks' results being block, channel group, h, channel."""
        blocks, poses = self.outputs.shape
        written = torch.arange(blocks * channels * poses).reshape(blocks, groups, poses, channels // groups)
        by_pose = written.permute(1, 3, 0, 2).reshape(channels, blocks * poses)
        return by_pose[:, self.outputs.flatten().argsort()].flatten()

    def filters(self, bank: Tensor, groups: int = 1) -> Tensor:
        """Turned slices (out, in, blocks, |H|, |T|, k, k) as filters of a plain convolution with channel groups."""
        ordered = bank.unflatten(0, (groups, -1)).permute(3, 0, 4, 1, 5, 2, 6, 7)
        return ordered.flatten(4, 5).flatten(0, 3)

    def biases(self, bias: Tensor, groups: int = 1) -> Tensor:
        """A bias per channel as one per plane that the blocks write."""
        blocks, poses = self.outputs.shape
        return bias.unflatten(0, (groups, 1, -1)).expand(blocks, groups, poses, -1).flatten()


def pose_blocks(group: FiniteGroup, relative: tuple[int, ...]) -> PoseBlocks:
    """Which input poses feed which output poses if only the relative poses ``relative``, in order, count.

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
            f"at least one, got {relative!r}; tuple(group.elements) are all."
        )
    product, kept = group.product, np.array(relative)
    place = np.zeros(group.order, dtype=np.int64)
    place[kept] = np.arange(len(kept))
    stabiliser = [h for h in group.elements if set(product[h, kept].tolist()) == set(relative)]
    firsts = group.left_cosets(stabiliser)[:, 0]
    return PoseBlocks(
        inputs=torch.tensor(product[firsts][:, kept]),
        outputs=torch.tensor(product[firsts][:, stabiliser]),
        slices=torch.tensor(place[product[group.inverse[stabiliser]][:, kept]]),
    )


def blocks_pay(blocks: PoseBlocks, in_channels: int, out_channels: int, kernel_size: int) -> bool:
    """Whether blocks are faster than one convolution with zeros for what is left out; channels per channel group.

    The rule of thumb of measurements (docs/restriction.md): convolutions in channel groups are fast where each group
    has a multiple of eight planes, the registers' width, and not too few; 1x1 convolutions are one product of matrices,
    hard to beat with several smaller ones.
    """
    if kernel_size == 1:
        return False
    number, outputs = blocks.outputs.shape
    read, written = blocks.inputs.shape[1] * in_channels, outputs * out_channels
    share = blocks.inputs.shape[1] / (number * outputs)
    return share <= 1 / 8 or (read % 8 == 0 and written % 8 == 0 and written >= 16)
