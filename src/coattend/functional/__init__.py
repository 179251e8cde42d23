"""Pure functions behind the layers: co-attention, convolutions and banks of turned filters."""

from coattend.functional.attention import attend as attend
from coattend.functional.attention import attend_slices as attend_slices
from coattend.functional.attention import attention_index as attention_index
from coattend.functional.attention import attention_mask as attention_mask
from coattend.functional.attention import attention_matrix as attention_matrix
from coattend.functional.attention import co_attention as co_attention
from coattend.functional.attention import co_attention_mask as co_attention_mask
from coattend.functional.attention import plane_index as plane_index
from coattend.functional.convolution import padded_conv2d as padded_conv2d
from coattend.functional.dispatch import HAS_OPERATORS
from coattend.functional.dispatch import autocasts as autocasts
from coattend.functional.dispatch import build_kernels as build_kernels
from coattend.functional.dropout import dropout as dropout
from coattend.functional.filter_bank import group_filters as group_filters
from coattend.functional.filter_bank import turn_filters as turn_filters
from coattend.functional.filter_bank import turned_slices as turned_slices
from coattend.functional.pooling import max_pool_2x2 as max_pool_2x2
from coattend.functional.pose_blocks import PoseBlocks as PoseBlocks
from coattend.functional.pose_blocks import blocks_are_faster as blocks_are_faster
from coattend.functional.pose_blocks import pose_blocks as pose_blocks

if HAS_OPERATORS:
    from coattend.functional._kernels import ops as _ops  # noqa: F401  registers torch.ops.coattend
