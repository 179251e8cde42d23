"""All operators of ``torch.ops.coattend``; importing this module registers them."""

from coattend.functional._kernels import attention, convolution, dynamic, flops, pooling

__all__ = ["attention", "convolution", "dynamic", "flops", "pooling"]
