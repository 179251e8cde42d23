"""Layers on a group: convolutions, co-attention, norms, pooling, dropout."""

from coattend.nn._conv_base import PoseConv2d as PoseConv2d
from coattend.nn.attention import AttentionLayer as AttentionLayer
from coattend.nn.attention import PoseAttention as PoseAttention
from coattend.nn.co_attention import CoAttention as CoAttention
from coattend.nn.co_attention import MultiheadCoAttention as MultiheadCoAttention
from coattend.nn.conv import GroupConv2d as GroupConv2d
from coattend.nn.conv import LiftingConv2d as LiftingConv2d
from coattend.nn.conv import ProjectionConv2d as ProjectionConv2d
from coattend.nn.dren import CycleConv2d as CycleConv2d
from coattend.nn.dren import DecycleConv2d as DecycleConv2d
from coattend.nn.dren import IsotonicConv2d as IsotonicConv2d
from coattend.nn.dropout import GroupDropout2d as GroupDropout2d
from coattend.nn.dynamic_conv import DynamicGroupConv2d as DynamicGroupConv2d
from coattend.nn.gate import GroupGate2d as GroupGate2d
from coattend.nn.gate import LiftingGate2d as LiftingGate2d
from coattend.nn.gate import SliceGate2d as SliceGate2d
from coattend.nn.norm import GroupBatchNorm2d as GroupBatchNorm2d
from coattend.nn.norm import GroupGroupNorm2d as GroupGroupNorm2d
from coattend.nn.norm import GroupInstanceNorm2d as GroupInstanceNorm2d
from coattend.nn.norm import GroupLayerNorm2d as GroupLayerNorm2d
from coattend.nn.pooling import GroupPool as GroupPool
from coattend.nn.pooling import SpatialAvgPool2d as SpatialAvgPool2d
from coattend.nn.pooling import SpatialMaxPool2d as SpatialMaxPool2d
from coattend.nn.pooling import SpatialUpsample2d as SpatialUpsample2d
from coattend.nn.pose_self_attention import PoseSelfAttention as PoseSelfAttention
from coattend.nn.slice_conv import SliceCoAttentiveConv2d as SliceCoAttentiveConv2d
