"""All operators of ``torch.ops.coattend``; importing this module registers them."""

from coattend.functional._kernels import (
    attention,
    convolution,
    dropout,
    dynamic,
    flops,
    gates,
    image_gradient,
    normalization,
    order,
    pooling,
    pose_self_attention,
    slice_convolution,
)

__all__ = [
    "attention",
    "convolution",
    "dropout",
    "dynamic",
    "flops",
    "gates",
    "image_gradient",
    "normalization",
    "order",
    "pooling",
    "pose_self_attention",
    "slice_convolution",
]
