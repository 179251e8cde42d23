"""Co-attention on GPUs in Triton, one pass forward and one backward, as in planes.cpp.

A program attends to a tile: all poses of one image and channel at some positions. Planes, rows and matrices are as in
:func:`coattend.functional._kernels.cpu.forward`. Nothing is added atomically, so results do not change from run to run.
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs
# Triton has no types, and its annotations mean something else.

from __future__ import annotations

import functools
import subprocess
from collections.abc import Sequence

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

LARGEST_ORDER = 32
TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def forward(planes: Tensor, matrices: Tensor, rows: Sequence[int], channel_step: int) -> Tensor:
    """Attend and sum over the slices, as :func:`coattend.functional._kernels.cpu.forward`."""
    planes = planes.contiguous()
    channels, _, order, _ = matrices.shape
    y = planes.new_empty(len(planes), channels, order, *planes.shape[-2:])
    width = _width(planes, order)
    blocks = triton.cdiv(_pixels(planes), width)
    _launch(_forward, (y,), planes, matrices, rows, channel_step, parts=blocks, width=width)
    return y


def backward(
    grad: Tensor, planes: Tensor, matrices: Tensor, rows: Sequence[int], channel_step: int
) -> tuple[Tensor, Tensor]:
    """Return the gradients of :func:`forward` with respect to the planes and the matrices."""
    planes = planes.contiguous()
    channels, slices, order, _ = matrices.shape
    width = _width(planes, order)
    blocks = triton.cdiv(_pixels(planes), width)
    tiles = min(max(blocks, 1), triton.cdiv(16 * order, width))  # on large maps the sums are a sixteenth of them
    parts = triton.cdiv(blocks, tiles)
    grad_planes = torch.empty_like(planes)
    sums = planes.new_empty(len(planes), channels, parts, slices, order, order, dtype=_wide(planes))
    tensors = (grad.contiguous(), grad_planes, sums)
    _launch(_backward, tensors, planes, matrices, rows, channel_step, parts=parts, width=width, tiles=tiles)
    return grad_planes, (sums.sum((0, 2)) / order).to(matrices.dtype)


def try_on(device: torch.device) -> None:
    """Attend to one pixel; RuntimeError or OSError if Triton has no compiler or does not support the device."""
    try:
        forward(torch.zeros(1, 1, 1, 1, device=device), torch.zeros(1, 1, 1, 1, device=device), [0], 1)
    except (triton.TritonError, subprocess.SubprocessError) as reason:
        raise RuntimeError(f"Triton: {reason}") from reason


def _launch(
    kernel,
    tensors: tuple[Tensor, ...],
    planes: Tensor,
    matrices: Tensor,
    rows: Sequence[int],
    channel_step: int,
    *,
    parts: int,
    **sizes: int,
) -> None:
    channels, slices, order, _ = matrices.shape
    programs = len(planes) * channels * parts
    if programs == 0:
        return
    pixels = _pixels(planes)
    with torch.cuda.device_of(planes):  # Triton launches on the current GPU, which need not be the tensor's
        kernel[(programs,)](
            *tensors,
            planes,
            (matrices.to(_wide(planes)) / order).contiguous(),
            _row_table(tuple(rows), planes.device),
            channels,
            slices,
            pixels,
            channels * slices * order * pixels,
            channel_step * pixels,
            parts,
            order=order,
            poses=triton.next_power_of_2(order),
            wide=tl.float64 if planes.dtype == torch.float64 else tl.float32,
            # Where one pose has nearly all of the mask, the backward pass would amplify the error of a fused product.
            enable_fp_fusion=False,
            **sizes,
        )


def _pixels(planes: Tensor) -> int:
    return planes.shape[-2:].numel()


def _wide(planes: Tensor) -> torch.dtype:
    return torch.promote_types(planes.dtype, torch.float32)


def _width(planes: Tensor, order: int) -> int:
    """Return the positions of a tile of 2048 numbers, sixteen per thread: its registers hold several such tiles."""
    return min(triton.next_power_of_2(max(_pixels(planes), 1)), 2048 // triton.next_power_of_2(order))


@functools.lru_cache(maxsize=64)
def _row_table(rows: tuple[int, ...], device: torch.device) -> Tensor:
    """Cache the rows on the device: the host would wait for a copy in every call."""
    return torch.tensor(rows, device=device)


@triton.jit
def _attended(planes, matrix, rows, pixels, pose, position, order: tl.constexpr, wide: tl.constexpr):
    """Return responses, logits, their maximum and the mask of one slice; beyond the order the mask is 0."""
    real, inside = pose < order, position < pixels
    row = tl.load(rows + pose, mask=real, other=0)
    present = real[:, None] & inside[None, :]
    responses = tl.load(planes + row[:, None] * pixels + position[None, :], mask=present, other=0).to(wide)
    logits = tl.zeros_like(responses)
    for source in range(order):  # unrolled, the backward of order 16 takes 22 s to compile instead of 1.4
        response = tl.load(planes + tl.load(rows + source) * pixels + position, mask=inside, other=0).to(wide)
        weight = tl.load(matrix + source * order + pose, mask=real, other=0)
        logits += weight[:, None] * response[None, :]
    logits = tl.where(real[:, None], logits, float("-inf"))
    unknown = tl.max((logits != logits).to(tl.int32), axis=0) > 0  # a NaN is the maximum, as in the formula
    top = tl.where(unknown, float("nan"), tl.max(logits, axis=0))
    return responses, logits, top, tl.exp(logits - top[None, :])


@triton.jit
def _forward(
    y,
    planes,
    matrices,
    rows,
    channels,
    slices,
    pixels,
    image_step,
    channel_step,
    blocks,
    order: tl.constexpr,
    poses: tl.constexpr,
    wide: tl.constexpr,
    width: tl.constexpr,
):
    program = tl.program_id(0)
    plane = (program // blocks).to(tl.int64)  # a map may have more than 2^31 numbers
    channel = plane % channels
    planes += plane // channels * image_step + channel * channel_step
    pose = tl.arange(0, poses)
    position = program % blocks * width + tl.arange(0, width)
    total = tl.zeros([poses, width], dtype=wide)
    for t in range(slices):
        matrix = matrices + (channel * slices + t) * order * order
        responses, _, _, mask = _attended(planes, matrix, rows + t * order, pixels, pose, position, order, wide)
        total += mask * responses
    to = y + (plane * order + pose[:, None]) * pixels + position[None, :]
    tl.store(to, total.to(y.dtype.element_ty), mask=(pose < order)[:, None] & (position < pixels)[None, :])


@triton.jit
def _backward(
    grad,
    grad_planes,
    sums,
    planes,
    matrices,
    rows,
    channels,
    slices,
    pixels,
    image_step,
    channel_step,
    parts,
    order: tl.constexpr,
    poses: tl.constexpr,
    wide: tl.constexpr,
    width: tl.constexpr,
    tiles: tl.constexpr,
):
    """Compute ``d logit = mask * x * dy`` minus the sum of these, which the poses at the maximum share evenly."""
    program = tl.program_id(0)
    plane = (program // parts).to(tl.int64)
    channel = plane % channels
    start = plane // channels * image_step + channel * channel_step
    pose = tl.arange(0, poses)
    real = pose < order
    for t in range(slices):
        matrix = matrices + (channel * slices + t) * order * order
        total = tl.zeros([poses, poses], dtype=wide)
        for tile in range(tiles):
            position = (program % parts * tiles + tile) * width + tl.arange(0, width)
            inside = position < pixels
            responses, logits, top, mask = _attended(
                planes + start, matrix, rows + t * order, pixels, pose, position, order, wide
            )
            up = grad + (plane * order + pose[:, None]) * pixels + position[None, :]
            passed = mask * tl.load(up, mask=real[:, None] & inside[None, :], other=0).to(wide)
            through_mask = passed * responses
            highest = (logits == top[None, :]).to(wide)
            shared = tl.sum(through_mask, axis=0) / tl.sum(highest, axis=0)
            grad_logits = through_mask - highest * shared[None, :]
            for source in range(order):
                here = (pose == source)[:, None]
                row = start + tl.load(rows + t * order + source) * pixels + position
                weight = tl.load(matrix + source * order + pose, mask=real, other=0)
                down = tl.sum(tl.where(here, passed, 0) + weight[:, None] * grad_logits, axis=0)
                tl.store(grad_planes + row, down.to(grad_planes.dtype.element_ty), mask=inside)
                response = tl.load(planes + row, mask=inside, other=0).to(wide)
                products = tl.sum(response[None, :] * grad_logits, axis=1)
                total += tl.where(here, products[None, :], 0)
        to = sums + ((plane * parts + program % parts) * slices + t) * order * order
        tl.store(to + pose[:, None] * order + pose[None, :], total, mask=real[:, None] & real[None, :])
