"""Plain convolutions between the planes of images and maps: the poses of a map are among the channels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.functional.dispatch import (
    autocasts,
    computed_type,
    decomposes,
    differentiates_again,
    in_dual_level,
    is_eager,
)
from coattend.functional.geometry import Geometry
from coattend.functional.layout import channels_last, folded, joined, prefers_channels_last
from coattend.functional.tables import BlockTables

# On CPUs a batch is convolved in parts whose intermediate planes are still in the cache when they are read again. Parts
# of responses are also small enough that the allocator reuses their memory: fresh pages cost more than the attention.
BLOCK_BYTES = 4 * 2**20
RESPONSE_BYTES = 12 * 2**20

# Kernels that convolve a few lines and attend to them at once: what of it has to stay in the cache, and the images that
# are needed to occupy the processor with gradients, since the lines of an image are taken in turn.
TILE_FILTER_BYTES = 320 * 2**10
TILE_LINE_BYTES = 512 * 2**10
FEWEST_IMAGES = 8


def planes_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
    poses: int | None,
) -> Tensor:
    """Apply ``conv2d`` to the planes of an image or a map; the result is a map with ``poses``, else an image."""
    planes = folded(x)
    if has_slow_gradients(planes, weight):
        if autocasts(planes):
            dtype = torch.get_autocast_dtype(planes.device.type)
            planes, weight, bias = planes.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
        y = OneChannelConv2d.apply(planes, weight, bias, stride, padding, dilation)
    else:
        y = F.conv2d(planes, weight, bias, stride, padding, dilation, groups)
    return y if poses is None else y.unflatten(1, (-1, poses))


def has_slow_gradients(x: Tensor, weight: Tensor) -> bool:
    """Return whether :class:`OneChannelConv2d` has the faster gradients: images of one channel on CPUs."""
    if x.shape[1] != 1 or not (x.requires_grad or weight.requires_grad) or not torch.is_grad_enabled():
        return False
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.bfloat16) and is_eager(x)


class OneChannelConv2d(torch.autograd.Function):
    """``conv2d`` of images with one channel, whose gradients have kernels of their own.

    Libraries compute them for blocks of 16 channels of the image, of which 15 do not exist.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int, dilation: int
    ) -> Tensor:
        """Return the convolution."""
        ctx.save_for_backward(x, weight)
        ctx.geometry, ctx.has_bias = (stride, padding, dilation), bias is not None
        return F.conv2d(x, weight, bias, stride, padding, dilation)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients, by operations that can be differentiated again."""
        x, weight = ctx.saved_tensors
        needed = [*ctx.needs_input_grad[:2], ctx.has_bias and ctx.needs_input_grad[2]]
        stride, padding, dilation = ctx.geometry
        return *conv2d_gradients(grad, x, weight, stride, padding, dilation, needed), None, None, None


def conv2d_gradients(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: int,
    padding: int,
    dilation: int,
    needed: Sequence[bool],
    groups: int = 1,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the needed gradients of ``conv2d`` for x, the weight and the bias, which can be differentiated again.

    Those for images of one channel have kernels, that for filters if the result is in channels-last format.
    """
    pairs = [stride] * 2, [padding] * 2, [dilation] * 2
    rest = [len(weight)], *pairs, False, [0, 0], groups
    by_library = partial(torch.ops.aten.convolution_backward, grad, x, weight, *rest)
    if x.shape[1] != 1 or x.device.type != "cpu" or in_dual_level():
        return by_library(list(needed))
    of_x, *of_filters = needed
    geometry = stride, padding, dilation
    grad_x = torch.ops.coattend.image_gradient(grad, weight, *x.shape[-2:], *geometry) if of_x else None
    if not any(of_filters):
        return grad_x, None, None
    is_by_position = grad.permute(0, 2, 3, 1).is_contiguous() and grad.dtype in (torch.float32, torch.bfloat16)
    if not is_by_position or differentiates_again():
        return grad_x, *by_library([False, *of_filters])[1:]
    gradients = torch.ops.coattend.image_filter_gradients(grad, x, weight, *geometry)
    grad_weight, grad_bias = (g if is_needed else None for g, is_needed in zip(gradients, of_filters, strict=True))
    return grad_x, grad_weight, grad_bias


def convolve_planes(
    x: Tensor,
    bank: Tensor,
    bias: Tensor | None,
    geometry: Geometry,
    poses: int | None = None,
    in_planes: bool = False,
) -> Tensor:
    """Apply :func:`planes_conv2d` in any padding mode, and in planes if these are known to be faster."""
    _, stride, padding, dilation, groups, padding_mode = geometry
    if padding_mode != "zeros" and padding > 0:
        x = F.pad(folded(x), (padding,) * 4, mode=padding_mode)
        padding = 0
    if prefers_channels_last(x) and not in_planes:
        bank = bank_channels_last(bank)
    if torch.compiler.is_compiling() and not decomposes(x) and not autocasts(x):
        return torch.ops.coattend.convolution(x, bank, bias, stride, padding, dilation, groups, poses)
    return planes_conv2d(x, bank, bias, stride, padding, dilation, groups, poses)


def fills_registers(inputs: int, outputs: int, groups: int) -> bool:
    """Return whether each channel group, of so many planes, fills vector registers; then planes are faster."""
    return groups > 1 and inputs % 8 == 0 and outputs % 8 == 0


def bank_channels_last(bank: Tensor) -> Tensor:
    """Return filters in channels-last format, themselves if they have its strides.

    Filters of one channel have strides that suit both formats; convolutions take them for the other one.
    """
    inputs, height, width = bank.shape[1:]
    if bank.stride() == (height * width * inputs, 1, width * inputs, inputs):
        return bank
    return bank.clone(memory_format=torch.channels_last)


def slices_stay_in_cache(x: Tensor, bank: Tensor, matrices: Tensor, slices: int, geometry: Geometry) -> bool:
    """Return whether the operator ``slice_convolution`` computes a slice-attentive convolution, and is faster."""
    order = x.shape[2]
    if order not in (2, 4, 8) or slices != order or not takes_filters(x, bank, matrices):
        return False
    # Graphs that are exported for any batch may not ask for its size: the other question comes first.
    if not stays_in_cache(x, len(matrices), geometry, order):
        return False
    needs_gradients = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, bank, matrices))
    return x.shape[0] >= FEWEST_IMAGES or not needs_gradients


def convolve_slices(x: Tensor, bank: Tensor, matrices: Tensor, rows: list[int], padding: int) -> Tensor:
    """Return the sum over attended slices for which :func:`slices_stay_in_cache` holds, by one operator."""
    read = channels_last(x.to(computed_type(x)))
    return torch.ops.coattend.slice_convolution(read, bank.float(), matrices.float(), rows, padding)


def takes_filters(x: Tensor, *filters: Tensor | None) -> bool:
    """Return whether a convolution of x takes such filters: of its type, under autocast also float32."""
    types = {tensor.dtype for tensor in filters if tensor is not None}
    return types <= ({torch.float32, computed_type(x)} if autocasts(x) else {x.dtype})


def multiplies(dtype: torch.dtype) -> bool:
    """Return whether kernels convolve maps of a type as fast as libraries do."""
    from coattend.functional._kernels import cpu

    if dtype == torch.bfloat16:
        return cpu.library() is not None and cpu.STATE.multiplies_bfloat16
    return dtype == torch.float32


def stays_in_cache(x: Tensor, columns: int, geometry: Geometry, poses: int = 1) -> bool:
    """Return whether a kernel can convolve a few lines at a time and attend to them at once, in the cache.

    Each of ``poses`` channel groups of x has so many columns of responses.
    """
    is_supported = (
        geometry.stride == geometry.dilation == geometry.groups == 1
        and (geometry.padding_mode == "zeros" or geometry.padding == 0)
        and columns % 8 == 0
        and prefers_channels_last(x)
        and multiplies(computed_type(x))
    )
    if not is_supported:
        return False
    filters = columns * x.shape[1:-2].numel() * geometry.kernel_size**2
    line = poses * columns * geometry.output_size(x.shape[-1])
    return computed_type(x).itemsize * filters <= TILE_FILTER_BYTES and 4 * line <= TILE_LINE_BYTES


def convolve_blocks(x: Tensor, bank: Tensor, bias: Tensor | None, geometry: Geometry, tables: BlockTables) -> Tensor:
    """Gather the planes that the blocks of a map read, convolve the blocks as channel groups, sort what they write."""
    by_block = geometry._replace(groups=len(tables.layout.outputs) * geometry.groups)
    biases = None if bias is None else tables.layout.biases(bias, geometry.groups)
    image_bytes = len(tables.input_planes) * x.shape[-2:].numel() * x.element_size()
    in_planes, maps = fills_registers(bank.shape[1], len(bank) // by_block.groups, by_block.groups), []
    for part in batch_parts(x.flatten(1, 2), image_bytes, BLOCK_BYTES):
        read = part.index_select(1, tables.input_planes)
        planes = convolve_planes(read, bank, biases, by_block, in_planes=in_planes)
        maps.append(planes.index_select(1, tables.output_planes).unflatten(1, (-1, tables.layout.outputs.numel())))
    return joined(maps)


def convolve_poses(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, groups: int) -> Tensor:
    """Apply a 1x1 convolution, whose filter no pose moves, to each pose for itself: rows of all poses are one image."""
    rows = x[..., ::stride, ::stride] if stride > 1 else x
    return F.conv2d(rows.flatten(2, 3), weight, bias, groups=groups).unflatten(2, (x.shape[2], -1))


def reads_own_pose(geometry: Geometry, relative: Iterable[int] | None) -> bool:
    """Return whether a group convolution is a 1x1 convolution of each pose for itself."""
    return geometry.kernel_size == 1 and geometry.padding == 0 and relative is not None and tuple(relative) == (0,)


def batch_parts(x: Tensor, image_bytes: int, most: int | None) -> tuple[Tensor, ...]:
    """Split a batch on a CPU so that each part needs at most so many bytes; graphs get it whole."""
    if most is None or x.device.type != "cpu" or not is_eager(x):
        return (x,)
    return x.split(max(1, most // max(1, image_bytes)))


def repeat_bias(bias: Tensor | None, poses: int) -> Tensor | None:
    """Return one bias per plane of a map, given one per channel."""
    return None if bias is None else bias.repeat_interleave(poses)


def add_bias(y: Tensor, bias: Tensor | None) -> Tensor:
    """Add one bias per channel, the second axis; as in a convolution under autocast, the map keeps its type."""
    return y if bias is None else y + bias.to(y.dtype).reshape(-1, *(1 for _ in y.shape[2:]))
