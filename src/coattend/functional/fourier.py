"""Co-attention along the rotations of large cyclic and dihedral groups, by real Fourier transforms.

With elements numbered ``n * block + rotation`` the attention matrix consists of circulant blocks. So the logits
``l[j, s] = sum_ir x[i, r] a[i, j, r - s] / order`` are circular correlations along the rotations, and their spectra
``L[j] = sum_i X[i] conj(A[i, j]) / order``: ``n log n`` operations instead of ``n^2``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coattend.functional.dispatch import is_eager
from coattend.groups import FiniteGroup

# Measured with benchmarks/large_groups.py: forward and backward, float32, two threads. Up to order 64 transforms take
# 1.3 to 5 times as long as the C++ kernels, which use the matrix. Above it the alternative is the plain formula, and
# they take 0.4 to 0.8 times as long at orders 96 and 128, except for maps that fit into the cache, 1.0 to 2.8 times.
LARGEST_ORDER_OF_MATRIX = 64
SMALLEST_MAP = 3 * 2**19
MOST_BLOCKS = 2  # one in cyclic groups, two in dihedral ones; there are blocks^2 products of spectra
PIECE = 2**18  # so many numbers of a map are attended to at a time, which stay in the cache


def is_faster(x: Tensor, group: FiniteGroup) -> bool:
    """Return whether transforms are faster than the matrix, for a map over a group."""
    if not is_eager(x) or x.device.type != "cpu" or x.numel() < SMALLEST_MAP:
        return False
    return LARGEST_ORDER_OF_MATRIX < group.order <= MOST_BLOCKS * rotations(group)


@functools.lru_cache(maxsize=32)
def rotations(group: FiniteGroup) -> int:
    """Return n if the elements are numbered ``n * block + rotation``, as in Cn, Dn and A x Cn, else 1.

    Then element 1 times an element is the next one of its block.
    """
    successors = group.product[1 % group.order]
    n = len(group.generate([1 % group.order]))
    block, rotation = np.divmod(np.arange(group.order), n)
    return n if np.array_equal(successors, n * block + (rotation + 1) % n) else 1


def attend_rotations(x: Tensor, matrix: Tensor, n: int) -> Tensor:
    """Return ``mask * x``; saves only its inputs for the backward pass.

    Args:
        x: a map (batch, channels, group, ...); where it is infinite, the result is NaN in all poses.
        matrix: (channels, group, group), of circulant blocks n x n, of which only the first columns are read.
        n: the number of rotations in a block, see :func:`rotations`.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    columns = matrix[:, :, ::n].unflatten(1, (-1, n)).mT.to(wide)  # c i j r
    responses = x.flatten(3).unflatten(2, (-1, n)).to(wide)  # b c i r p
    attended: Tensor = _AttendRotations.apply(responses, columns)
    return attended.to(x.dtype).reshape(x.shape)


class _AttendRotations(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, columns: Tensor) -> Tensor:
        ctx.save_for_backward(x, columns)
        y = x.new_empty(x.shape)
        for images, channels in _pieces(x):
            responses = _rotations_last(x[images, channels])
            _, logits = _logits(responses, _filters(columns[channels]))
            y[images, channels] = (_mask(logits) * responses).mT
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, columns = ctx.saved_tensors
        if torch.is_grad_enabled():  # these gradients are differentiated again
            return _gradients(grads[0], x, columns)
        grad_x, grad_columns = x.new_empty(x.shape), torch.zeros_like(columns)
        for images, channels in _pieces(x):
            of_x, of_columns = _gradients(grads[0][images, channels], x[images, channels], columns[channels])
            grad_x[images, channels] = of_x
            grad_columns[channels] += of_columns
        return grad_x, grad_columns


def _gradients(grad: Tensor, x: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of ``mask * x`` with respect to x and the columns, as ``attend_gradients`` does."""
    blocks, n = columns.shape[-2:]
    responses, filters = _rotations_last(x), _filters(columns)
    spectra, logits = _logits(responses, filters)
    direct = _mask(logits) * _rotations_last(grad)
    through_mask = direct * responses
    is_largest = (logits == logits.amax(dim=(2, 4), keepdim=True)).to(x.dtype)
    share = through_mask.sum(dim=(2, 4), keepdim=True) / is_largest.sum(dim=(2, 4), keepdim=True)
    of_logits = torch.fft.rfft(through_mask - is_largest * share)
    grad_x = direct + torch.fft.irfft(_product(of_logits, filters.conj().transpose(1, 2)), n)
    of_columns = torch.stack([(spectra * of_logits[:, :, j, None].conj()).sum((0, 3)) for j in range(blocks)], dim=2)
    return grad_x.mT, torch.fft.irfft(of_columns, n) / (blocks * n)


def _logits(responses: Tensor, filters: Tensor) -> tuple[Tensor, Tensor]:
    """Return the spectra of responses (b c i p r), and the logits (b c j p r)."""
    spectra = torch.fft.rfft(responses)
    return spectra, torch.fft.irfft(_product(spectra, filters), responses.shape[-1])


def _filters(columns: Tensor) -> Tensor:
    """Return the spectra (c i j f) with which those of the responses are multiplied."""
    _, blocks, _, n = columns.shape
    return torch.fft.rfft(columns).conj().resolve_conj() / (blocks * n)


def _product(spectra: Tensor, filters: Tensor) -> Tensor:
    """Return ``sum_i X[i] F[i, j]`` for spectra (b c i p f) and filters (c i j f)."""
    product = spectra[:, :, 0, None] * filters[:, 0, :, None]
    for i in range(1, filters.shape[1]):
        product = product + spectra[:, :, i, None] * filters[:, i, :, None]
    return product


def _mask(logits: Tensor) -> Tensor:
    return torch.exp(logits - logits.amax(dim=(2, 4), keepdim=True))


def _rotations_last(x: Tensor) -> Tensor:
    return x.mT.contiguous()


def _pieces(x: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield images and channels whose numbers fit into a piece, one channel at least."""
    batch, channels = x.shape[:2]
    per_channel = max(1, x[:1, :1].numel())
    channel_step = min(channels, max(1, PIECE // per_channel))
    image_step = max(1, PIECE // (per_channel * channel_step))
    for image in range(0, batch, image_step):
        for channel in range(0, channels, channel_step):
            yield slice(image, image + image_step), slice(channel, channel + channel_step)
