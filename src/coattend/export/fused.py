"""Attention of frozen networks: the operators of this library where it is installed, torch functions in files.

The modules of this file are pickled as graphs of torch functions, so that ``torch.save`` writes a frozen network that
needs no library, and the tools of torch.fx see those functions as well.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from coattend.functional.attention import attend, attend_slices, plane_index
from coattend.functional.dispatch import is_eager, is_exporting
from coattend.functional.dynamic import ContextNorm, filter_positions
from coattend.functional.gates import GateBanks, apply_gates, mask_formula
from coattend.functional.geometry import Geometry
from coattend.functional.layout import folded, joined, poses_first
from coattend.functional.normalization import (
    attention_joins,
    convolve_and_normalize,
    fuses_norm,
    normalize,
    normalize_in_place,
)
from coattend.functional.planes import RESPONSE_BYTES, batch_parts, convolve_slices, slices_stay_in_cache
from coattend.nn.hooks import has_hooks


class FrozenForm(nn.Module):
    """Base class: ``forward`` uses fused operators, ``standard`` computes the same by functions of torch."""

    def forward(self, planes: Tensor) -> Tensor:
        """Return planes (batch, channels * group, height, width)."""
        return self.standard(planes) if is_traced(planes) else self.fused(planes)

    def fused(self, planes: Tensor) -> Tensor:
        """Compute with the operators of this library."""
        raise NotImplementedError

    def standard(self, planes: Tensor) -> Tensor:
        """Compute with functions of torch; torch.fx traces this method."""
        raise NotImplementedError

    def __reduce__(self) -> Any:
        traced = fx.symbolic_trace(self).eval()
        for node in traced.graph.nodes:
            node.type = None  # annotations are strings here, and torch.fx looks for objects of that name
        traced.recompile()
        return traced.__reduce__()

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenForm:
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__ = copy.deepcopy(self.__dict__, memo)
        return copied


class FrozenGate(FrozenForm):
    """Gates of channels and positions, of planes with ``order`` poses."""

    def __init__(self, banks: GateBanks, order: int) -> None:
        super().__init__()
        for name, bank in zip(GateBanks._fields, banks, strict=True):
            self.register_buffer(name, bank.detach().clone())
        self.order = order

    def fused(self, planes: Tensor) -> Tensor:
        """See :meth:`FrozenForm.fused`."""
        return folded(apply_gates(planes.unflatten(1, (-1, self.order)), self._banks()))

    def standard(self, planes: Tensor) -> Tensor:
        """See :meth:`FrozenForm.standard`."""
        x = planes.unflatten(1, (-1, self.order))
        return (x * mask_formula(x, self._banks())).flatten(1, 2)

    def _banks(self) -> GateBanks:
        return GateBanks(*(self.get_buffer(name) for name in GateBanks._fields))


class FrozenGeneratedFilters(FrozenForm):
    """Filters generated from the context, and the value filtered with them, of planes with ``order`` poses.

    - bank: what generates the filters, (hidden + 1, slices, k * k, group), see ``filter_positions``
    - norm: of the context, before a ReLU; None if the context has been through both
    """

    def __init__(self, bank: Tensor, norm: ContextNorm | None) -> None:
        super().__init__()
        hidden, self.slices, self.taps, self.order = len(bank) - 1, *bank.shape[1:]
        by_pose = bank.detach().permute(3, 1, 2, 0).flatten(0, 2)  # (g s d) (m + 1)
        self.filters = nn.Conv2d(hidden * self.order, len(by_pose), 1, groups=self.order, device="meta")
        self.filters.weight = nn.Parameter(by_pose[:, :-1, None, None].contiguous(), requires_grad=False)
        self.filters.bias = nn.Parameter(by_pose[:, -1].clone(), requires_grad=False)
        self.norm: nn.GroupNorm | None = None
        if norm is not None:
            self.norm = nn.GroupNorm(hidden, hidden, norm.eps, device="meta")
            self.norm.weight = nn.Parameter(norm.weight.detach().clone(), requires_grad=False)
            self.norm.bias = nn.Parameter(norm.bias.detach().clone(), requires_grad=False)

    def forward(self, value: Tensor, context: Tensor) -> Tensor:  # type: ignore[override]
        """Return planes (batch, channels * group, height, width)."""
        return self.standard(value, context) if is_traced(value) else self.fused(value, context)

    def fused(self, value: Tensor, context: Tensor) -> Tensor:  # type: ignore[override]
        """See :meth:`FrozenForm.fused`."""
        assert self.filters.bias is not None
        norm = None if self.norm is None else ContextNorm(self.norm.weight, self.norm.bias, self.norm.eps)
        by_pose = torch.cat((self.filters.weight.flatten(1), self.filters.bias.unsqueeze(1)), dim=1)
        bank = by_pose.unflatten(0, (self.order, self.slices, self.taps)).permute(3, 1, 2, 0)
        value, context = (planes.unflatten(1, (-1, self.order)) for planes in (value, context))
        return folded(filter_positions(value, context, bank, norm))

    def standard(self, value: Tensor, context: Tensor) -> Tensor:  # type: ignore[override]
        """See :meth:`FrozenForm.standard`; one product per offset of the filter."""
        z = context.unflatten(1, (-1, self.order))
        z = z if self.norm is None else F.relu(self.norm(z))
        kappa = self.filters(z.transpose(1, 2).flatten(1, 2)).unflatten(1, (self.order, self.slices, 1, self.taps))
        kappa = kappa.permute(0, 2, 3, 4, 1, 5, 6)  # b s 1 d g h w
        k = math.isqrt(self.taps)
        padded = F.pad(value, (k // 2,) * 4).unflatten(1, (self.slices, -1, self.order))  # b s c g h w
        total: Any = None
        for offset in range(self.taps):
            row, column = (slice(start, start - k + 1 or None) for start in divmod(offset, k))
            term = kappa[:, :, :, offset] * padded[..., row, column]
            total = term if total is None else total.add_(term)
        return total.flatten(1, 3)


class FrozenUnit(FrozenForm):
    """Base class of co-attention with what follows it.

    - matrices: of co-attention, (channels, group, group)
    - offset: (output channels,), added at the end, or None
    - relu: whether a ReLU follows
    """

    matrices: Tensor
    offset: Tensor | None

    def __init__(self, matrices: Tensor, offset: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("matrices", matrices.detach().clone())
        self.register_buffer("offset", None if offset is None else offset.detach().clone())
        self.relu = False

    @property
    def wide(self) -> torch.dtype:
        """The type of masks: float32 for narrower types, into which logits of large activations do not fit."""
        return torch.promote_types(self.matrices.dtype, torch.float32)

    def _logit_matrices(self) -> Tensor:
        """Return the matrices that give logits of base 2, target pose first."""
        order = self.matrices.shape[-1]
        return (self.matrices.double().mT / (order * math.log(2))).to(self.wide).contiguous()

    def _wide(self, planes: Tensor) -> Tensor:
        """Return contiguous planes in the type of masks."""
        planes = planes.contiguous()
        return planes if self.wide == self.matrices.dtype else planes.to(self.wide)

    def _in_one_pass(self, x: Tensor, matrices: Tensor | None = None, is_own: bool = True) -> Tensor:
        """Attend to a map, if matrices are given, add the offset and apply the ReLU, as a norm with statistics 0, 1.

        A map of the unit's own is overwritten.
        """
        norm = None, self.offset, self._statistics(), 0.0, matrices, self.relu
        if is_own and is_eager(x) and not _needs_gradients(x):
            return folded(normalize_in_place(x, *norm))
        y, _, _ = normalize(x, *norm)
        return folded(y)

    def _statistics(self) -> tuple[Tensor, Tensor]:
        """Return the mean 0 and the variance 1 of the channels of a norm that only adds the offset."""
        numbers = len(self.matrices) if self.offset is None else len(self.offset)
        return self.matrices.new_zeros(numbers), self.matrices.new_ones(numbers)

    def _finish(self, planes: Tensor) -> Tensor:
        """Add the offset to planes that may be overwritten, apply the ReLU, and return to the type of the network."""
        if self.offset is not None:
            planes = planes.add_(self.offset.repeat_interleave(self.matrices.shape[-1])[:, None, None])
        planes = planes.relu_() if self.relu else planes
        return planes if self.wide == self.matrices.dtype else planes.to(self.matrices.dtype)


class FrozenAttention(FrozenUnit):
    """A convolution, or none, co-attention, an offset, and perhaps a ReLU."""

    def __init__(self, matrices: Tensor, conv: nn.Conv2d | None = None) -> None:
        super().__init__(matrices)
        self.conv = conv

    def fused(self, planes: Tensor) -> Tensor:
        """See :meth:`FrozenForm.fused`; together with the convolution where that is faster."""
        conv, order = self.conv, self.matrices.shape[-1]
        if conv is not None and _is_plain(conv) and not _needs_gradients(planes):
            geometry, filters = geometry_of(conv), (conv.weight, conv.bias)
            if attention_joins(planes, conv.out_channels, order, geometry, filters, (self.matrices, self.offset)):
                norm = None, self.offset, self._statistics(), 0.0, self.matrices, self.relu
                return folded(convolve_and_normalize(planes, conv.weight, conv.bias, geometry.padding, *norm)[0])
        by_pose = self._responses(planes).unflatten(1, (-1, order))
        if fuses_norm(by_pose, by_pose.shape[1], by_pose.shape[2]):
            return self._in_one_pass(by_pose, self.matrices, is_own=conv is not None)
        return self._finish(attend(by_pose, self.matrices).flatten(1, 2))

    def standard(self, planes: Tensor) -> Tensor:
        """See :meth:`FrozenForm.standard`."""
        planes = self._wide(self._responses(planes))
        return self._finish(standard_mask(planes, self._logit_matrices()).mul_(planes))

    def _responses(self, planes: Tensor) -> Tensor:
        return planes if self.conv is None else self.conv(planes)


class FrozenSliceConv2d(FrozenUnit):
    """A grouped convolution, co-attention to each filter slice, their sum, an offset, and perhaps a ReLU.

    - conv: the convolution, one channel group per input pose
    - rows: the plane of each (slice, pose) of the first output channel, see ``attend_slices``
    """

    def __init__(self, conv: nn.Conv2d, matrices: Tensor, offset: Tensor | None, rows: list[int]) -> None:
        super().__init__(matrices, offset)
        self.conv = conv
        self.rows = list(rows)
        self.slices = len(self.rows) // matrices.shape[-1]

    def fused(self, planes: Tensor) -> Tensor:
        """See :meth:`FrozenForm.fused`; in parts of the batch, or lines, whose responses stay in the cache."""
        if _is_plain(self.conv):
            x = planes.unflatten(1, (-1, self.matrices.shape[-1]))
            weight, geometry = self.conv.weight, geometry_of(self.conv, x.shape[2])
            if slices_stay_in_cache(x, weight, self.matrices, self.slices, geometry):
                return self._summed(convolve_slices(x, weight, self.matrices, self.rows, geometry.padding))
        positions = planes.shape[-2:].numel() // math.prod(self.conv.stride)
        image_bytes = self.conv.out_channels * positions * planes.element_size()
        parts = [self._attended(part) for part in batch_parts(planes, image_bytes, RESPONSE_BYTES)]
        return joined(parts)

    def _attended(self, planes: Tensor) -> Tensor:
        by_pose = poses_first(planes.unflatten(1, (-1, self.matrices.shape[-1])))
        responses = self.conv(by_pose.contiguous(memory_format=torch.channels_last))
        return self._summed(attend_slices(responses, self.matrices, self.rows, self.slices))

    def _summed(self, summed: Tensor) -> Tensor:
        """Return the planes of a sum over the slices, with the offset and after the ReLU."""
        if fuses_norm(summed, summed.shape[1]):
            return self._in_one_pass(summed)
        return self._finish(summed.flatten(1, 2))

    def standard(self, planes: Tensor) -> Tensor:
        """See :meth:`FrozenForm.standard`; one slice after the other, which keeps what is gathered in the cache."""
        responses = self._wide(self.conv(self._by_pose(planes)))
        index = slice_index(self.conv, self.rows, self.matrices.shape[-1]).to(self.matrices.device)
        matrices = self._logit_matrices().unflatten(0, (-1, self.slices))
        total: Any = None
        for number in range(self.slices):
            of_slice = torch.index_select(responses, 1, index[:, number].flatten())
            mask = standard_mask(of_slice, matrices[:, number].contiguous())
            total = mask.mul_(of_slice) if total is None else total.addcmul_(mask, of_slice)
        return self._finish(total)

    def _by_pose(self, planes: Tensor) -> Tensor:
        """Return planes ordered by pose, then channel: one block of channels per pose for the grouped convolution.

        By functions that torch.fx can trace; :meth:`fused` uses the kernel for it.
        """
        by_pose = planes.unflatten(1, (-1, self.matrices.shape[-1])).transpose(1, 2).flatten(1, 2)
        return by_pose.contiguous(memory_format=torch.channels_last)


def geometry_of(conv: nn.Conv2d, poses: int = 1) -> Geometry:
    """Return the geometry of a convolution of a frozen network, of each of its poses, the same along both axes."""
    size, stride, padding, dilation = conv.kernel_size[0], conv.stride[0], conv.padding[0], conv.dilation[0]
    assert isinstance(padding, int)
    return Geometry(size, stride, padding, dilation, conv.groups // poses, conv.padding_mode)


def _is_plain(conv: nn.Module) -> bool:
    """Return whether a kernel may compute what a convolution does: tools replace them, and watch them by hooks."""
    return type(conv) is nn.Conv2d and not has_hooks(conv)


def _needs_gradients(x: Tensor) -> bool:
    return torch.is_grad_enabled() and x.requires_grad


def is_traced(x: object) -> bool:
    """Return whether torch.fx or torch.export records what happens to a value."""
    return isinstance(x, fx.Proxy) or is_exporting()


def standard_mask(planes: Tensor, matrices: Tensor) -> Tensor:
    """Return the mask of contiguous planes for matrices of logits of base 2, in a tensor of its own."""
    by_pose = planes.unflatten(1, (-1, matrices.shape[-1])).flatten(3)
    logits = torch.matmul(matrices, by_pose)
    return logits.sub_(logits.amax(2, keepdim=True)).exp2_().reshape(planes.shape)


def slice_index(conv: nn.Conv2d, rows: list[int], order: int) -> Tensor:
    """Return the plane of each (output channel, slice, pose) in the output of the convolution of filter slices."""
    slices = len(rows) // order
    example = torch.empty(0, conv.out_channels, 1, 1)
    return plane_index(example, rows, channel_step=slices).unflatten(0, (-1, slices, order))
