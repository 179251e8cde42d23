"""Pure functions that the layers call: attention, convolutions on a group, pooling and dropout."""

from coattend.functional.attention import co_attention as co_attention
from coattend.functional.attention import co_attention_mask as co_attention_mask
from coattend.functional.convolution import group_conv2d as group_conv2d
from coattend.functional.convolution import lifting_conv2d as lifting_conv2d
from coattend.functional.convolution import projection_conv2d as projection_conv2d
from coattend.functional.convolution import slice_attentive_conv2d as slice_attentive_conv2d
from coattend.functional.dispatch import HAS_OPERATORS
from coattend.functional.dispatch import build_kernels as build_kernels
from coattend.functional.dropout import dropout as dropout
from coattend.functional.dynamic import dynamic_group_conv2d as dynamic_group_conv2d
from coattend.functional.gates import group_gate as group_gate
from coattend.functional.gates import group_gate_mask as group_gate_mask
from coattend.functional.layout import memory_format as memory_format
from coattend.functional.orientation import orientation_angle as orientation_angle
from coattend.functional.orientation import orientation_field as orientation_field
from coattend.functional.pooling import max_pool_2x2 as max_pool_2x2
from coattend.functional.pose_linear import pose_linear as pose_linear
from coattend.functional.pose_self_attention import pose_attention_weights as pose_attention_weights
from coattend.functional.pose_self_attention import pose_self_attention as pose_self_attention
from coattend.functional.self_attention import group_self_attention as group_self_attention
from coattend.functional.transposed import group_conv_transpose2d as group_conv_transpose2d

if HAS_OPERATORS:
    from coattend.functional._kernels import ops as _ops  # noqa: F401  registers torch.ops.coattend
