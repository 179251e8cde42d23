"""Pure functions behind the layers: co-attention and banks of turned filters."""

from coattend.functional.attention import attend as attend
from coattend.functional.attention import attend_slices as attend_slices
from coattend.functional.attention import attention_index as attention_index
from coattend.functional.attention import attention_mask as attention_mask
from coattend.functional.attention import attention_matrix as attention_matrix
from coattend.functional.attention import co_attention as co_attention
from coattend.functional.attention import co_attention_mask as co_attention_mask
from coattend.functional.dropout import dropout as dropout
from coattend.functional.filters import group_filters as group_filters
from coattend.functional.filters import padded_conv2d as padded_conv2d
from coattend.functional.filters import turn_filters as turn_filters
from coattend.functional.filters import turned_slices as turned_slices
from coattend.functional.formula import autocasts as autocasts
from coattend.functional.operators import plane_index as plane_index
from coattend.functional.pooling import max_pool_2x2 as max_pool_2x2
from coattend.functional.restriction import PoseBlocks as PoseBlocks
from coattend.functional.restriction import blocks_pay as blocks_pay
from coattend.functional.restriction import pose_blocks as pose_blocks
from coattend.functional.torch_tools import register_flops, register_shardings, when_imported

when_imported("torch.utils.flop_counter", register_flops)
when_imported("torch.distributed.tensor", register_shardings)
