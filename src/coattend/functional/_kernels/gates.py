"""``torch.ops.coattend.group_gate``: gates of channels and positions, in few passes over the map.

Maps are channels-last, (batch, height, width, channels, group) in memory, whatever the strides of the inputs.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from coattend.functional._kernels import cpu
from coattend.functional._kernels.library import LIBRARY, define, differentiates_again
from coattend.functional.checks import MAP, check_gradient, check_one_device, check_tensor
from coattend.functional.gates import GateBanks, gate_gradients, mask_formula

ORDERS = (1, 2, 4, 8, 16)


class Shape(ctypes.Structure):
    """``GateShape`` of gates.cpp, field by field."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("batch", "positions", "channels", "order", "threads"))


def group_gate(x: Tensor, squeeze: Tensor, excite: Tensor, spatial: Tensor) -> tuple[Tensor, ...]:
    """Gate a map: see :func:`coattend.functional.gates.group_gate`.

    Returns the map, and for the backward pass the statistics over positions, the gate of channels, that of positions,
    and the statistics over channels; without kernels these are empty.
    """
    banks = GateBanks(squeeze, excite, spatial)
    _check("group_gate", x, banks)
    if not _is_supported(x):
        nothing = (x.new_empty(0) for _ in range(4))
        return _channels_last(x * mask_formula(x, banks)), *nothing
    dtype = _computed_in(x)
    planes = _by_position(x, dtype)
    batch, height, width, channels, order = planes.shape
    statistics = planes.new_empty(batch, 3, channels, order)
    _run("pool", planes, statistics)
    squeezed, excited, filters = (bank.to(dtype) for bank in banks)
    hidden = _linear(statistics[:, :2], squeezed)
    alpha = _linear(hidden.relu().sum(1, keepdim=True), excited).sigmoid_().reshape(batch, channels, order)
    maps = planes.new_empty(batch, height, width, 2, order)
    _run("reduce", planes, alpha, maps)
    logits = F.conv2d(_outer(maps), filters, padding=filters.shape[-1] // 2)
    alpha_x = logits.permute(0, 2, 3, 1).contiguous().sigmoid_()
    y = torch.empty_like(planes)
    _run("apply", planes, alpha, alpha_x, y)
    return y.to(x.dtype).permute(0, 3, 4, 1, 2), statistics, alpha, alpha_x, maps


def group_gate_backward(
    grad: Tensor,
    x: Tensor,
    squeeze: Tensor,
    excite: Tensor,
    spatial: Tensor,
    statistics: Tensor,
    alpha: Tensor,
    alpha_x: Tensor,
    maps: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of :func:`group_gate` with respect to the map and the banks."""
    banks = GateBanks(squeeze, excite, spatial)
    _check("group_gate_backward", x, banks)
    check_gradient("group_gate_backward", grad, x.shape, x)
    if not _is_supported(x):
        raise ValueError("group_gate_backward expects tensors that the C++ kernels support; differentiate the formula.")
    batch, channels, order, height, width = x.shape
    shapes = (batch, 3, channels, order), (batch, channels, order), (batch, height, width, order)
    given = statistics.shape, alpha.shape, alpha_x.shape, maps.shape
    if given != (*shapes, (batch, height, width, 2, order)):
        raise ValueError(
            f"group_gate_backward expects the statistics and gates that group_gate returned for x {tuple(x.shape)}, "
            f"got shapes {', '.join(str(tuple(shape)) for shape in given)}."
        )
    dtype = _computed_in(x)
    statistics, alpha, alpha_x, maps = (t.to(dtype).contiguous() for t in (statistics, alpha, alpha_x, maps))
    planes, up = _by_position(x, dtype), _by_position(grad, dtype)
    squeezed, excited, filters = (bank.to(dtype) for bank in banks)
    grad_alpha, grad_alpha_x = torch.empty_like(alpha), torch.empty_like(alpha_x)
    _run("gates_backward", planes, up, planes, alpha, alpha_x, grad_alpha, grad_alpha_x)

    grad_logits = (grad_alpha_x * alpha_x * (1 - alpha_x)).permute(0, 3, 1, 2)
    grad_planes, grad_spatial = _spatial_gradients(grad_logits, _outer(maps), filters)
    grad_maps = grad_planes.permute(0, 2, 3, 1).contiguous()
    _run("reduce_backward", planes, planes, alpha, maps, grad_maps, grad_alpha)

    pairs = statistics[:, :2]
    hidden = _linear(pairs, squeezed)
    pooled = hidden.relu().sum(1, keepdim=True)
    grad_pooled, grad_excite = _linear_gradients((grad_alpha * alpha * (1 - alpha)).unsqueeze(1), pooled, excited)
    grad_statistics, grad_squeeze = _linear_gradients(grad_pooled * (hidden > 0), pairs, squeezed)

    grad_x = torch.empty_like(planes)
    _run("backward", planes, up, planes, alpha, alpha_x, maps, grad_maps, statistics, grad_statistics, grad_x)
    return (
        grad_x.to(x.dtype).permute(0, 3, 4, 1, 2),
        grad_squeeze.to(squeeze.dtype),
        grad_excite.to(excite.dtype),
        grad_spatial.to(spatial.dtype).contiguous(),
    )


def _linear(x: Tensor, bank: Tensor) -> Tensor:
    """Apply a matrix (out, in / groups) to rows, (batch, number, in...) -> (batch, number, out).

    As products of matrices: 1x1 convolutions of so few numbers take longer, with one channel 2 ms backward.
    """
    return _joined(torch.bmm(_divided(x, bank), _matrices(x, bank).mT), x)


def _linear_gradients(grad: Tensor, x: Tensor, bank: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of :func:`_linear` with respect to the rows, (batch, number, in), and the matrix."""
    rows, matrices = _divided(x, bank), _matrices(x, bank)
    up = grad.reshape(rows.shape[1], len(rows), -1).transpose(0, 1)
    return _joined(torch.bmm(up, matrices), x), torch.bmm(up.mT, rows).reshape(bank.shape)


def _matrices(x: Tensor, bank: Tensor) -> Tensor:
    """Return a matrix by groups of channels, (groups, out / groups, in / groups)."""
    return bank.reshape(x[0, 0].numel() // bank.shape[1], -1, bank.shape[1])


def _divided(x: Tensor, bank: Tensor) -> Tensor:
    """Return rows by groups of channels, (groups, batch * number, in / groups)."""
    return x.reshape(x.shape[0] * x.shape[1], -1, bank.shape[1]).transpose(0, 1)


def _joined(rows: Tensor, x: Tensor) -> Tensor:
    """Return rows of groups of channels as (batch, number, channels)."""
    return rows.transpose(0, 1).reshape(*x.shape[:2], -1)


def _spatial_gradients(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    padding = [weight.shape[-1] // 2] * 2
    gradients = torch.ops.aten.convolution_backward(
        grad, x, weight, None, [1, 1], padding, [1, 1], False, [0, 0], 1, [True, True, False]
    )
    return gradients[0], gradients[1]


def _outer(maps: Tensor) -> Tensor:
    """Return (batch, height, width, 2, group) as planes (batch, 2 * group, height, width)."""
    return maps.flatten(3).permute(0, 3, 1, 2)


def _run(name: str, planes: Tensor, *tensors: Tensor) -> None:
    batch, height, width, channels, order = planes.shape
    given = (planes, *tensors) if name in ("pool", "reduce", "apply") else tensors
    kernel = getattr(cpu.library(), f"coattend_gate_{name}_{cpu.TYPES[planes.dtype]}")
    shape = Shape(batch, height * width, channels, order, torch.get_num_threads())
    kernel(*(ctypes.c_void_p(tensor.data_ptr()) for tensor in given), ctypes.byref(shape))


def _is_supported(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.shape[2] in ORDERS and x.numel() > 0 and cpu.library() is not None


def _computed_in(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _by_position(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a map as (batch, height, width, channels, group), without a copy if that is how it is in memory."""
    return x.to(dtype).permute(0, 3, 4, 1, 2).contiguous()


def _channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 3, 4, 1, 2).contiguous().permute(0, 3, 4, 1, 2)


def _check(function: str, x: Tensor, banks: GateBanks) -> None:
    """Require tensors that fit together: the kernels would read beyond others."""
    check_tensor(function, "x", x, MAP, 5)
    for name, bank, rank in (("squeeze", banks.squeeze, 2), ("excite", banks.excite, 2), ("spatial", banks.spatial, 4)):
        check_tensor(function, name, bank, "(out, in)" if rank == 2 else "(out, in, k, k)", rank)
    planes, n = x.shape[1] * x.shape[2], x.shape[2]
    hidden, inside = banks.squeeze.shape
    groups = planes // inside if inside and planes % inside == 0 else 0
    k = banks.spatial.shape[-1]
    if not groups or banks.excite.shape != (planes, hidden // groups) or banks.spatial.shape != (n, 2 * n, k, k):
        raise ValueError(
            f"{function} expects the banks of a gate for x {tuple(x.shape)}, got {tuple(banks.squeeze.shape)}, "
            f"{tuple(banks.excite.shape)} and {tuple(banks.spatial.shape)}; pass those of a GroupGate2d."
        )
    check_one_device(function, x, *banks)


def _fake(x: Tensor, squeeze: Tensor, excite: Tensor, spatial: Tensor) -> tuple[Tensor, ...]:
    batch, channels, order, height, width = x.shape
    y = x.new_empty(batch, height, width, channels, order).permute(0, 3, 4, 1, 2)
    if not _is_supported(x):
        return y, *(x.new_empty(0) for _ in range(4))
    sizes = (batch, 3, channels, order), (batch, channels, order), (batch, height, width, order)
    dtype = _computed_in(x)
    return y, *(x.new_empty(size, dtype=dtype) for size in (*sizes, (batch, height, width, 2, order)))


def _fake_backward(
    grad: Tensor, x: Tensor, squeeze: Tensor, excite: Tensor, spatial: Tensor, *rest: Tensor
) -> tuple[Tensor, ...]:
    batch, channels, order, height, width = x.shape
    grad_x = x.new_empty(batch, height, width, channels, order).permute(0, 3, 4, 1, 2)
    return grad_x, *(bank.new_empty(bank.shape) for bank in (squeeze, excite, spatial))


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*inputs, *output[1:])


def _backward(ctx: Any, grad: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
    x, *others = ctx.saved_tensors
    if differentiates_again() or not others[3].numel():
        return gate_gradients(grad, x, GateBanks(*others[:3]))
    return torch.ops.coattend.group_gate_backward(grad, x, *others)


define(
    "group_gate(Tensor x, Tensor squeeze, Tensor excite, Tensor spatial) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    group_gate,
    _fake,
)
define(
    "group_gate_backward(Tensor grad, Tensor x, Tensor squeeze, Tensor excite, Tensor spatial, Tensor statistics,"
    " Tensor alpha, Tensor alpha_x, Tensor maps) -> (Tensor, Tensor, Tensor, Tensor)",
    group_gate_backward,
    _fake_backward,
)
torch.library.register_autograd("coattend::group_gate", _backward, setup_context=_save, lib=LIBRARY)
