"""All operators of ``torch.ops.coattend``; importing this module registers them."""

from coattend.functional._kernels import attention, convolution, dynamic, flops, gates, pooling, pose_self_attention

__all__ = ["attention", "convolution", "dynamic", "flops", "gates", "pooling", "pose_self_attention"]
