"""``torch.ops.coattend.filter_positions``: generated filters that are neither stored nor saved for the backward pass.

Results are channels-last, (batch, height, width, channels, group) in memory, whatever the strides of the inputs.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from coattend.functional._kernels import cpu
from coattend.functional._kernels.library import LIBRARY, define, differentiates_again
from coattend.functional.checks import MAP, check_gradient, check_one_device, check_tensor
from coattend.functional.dynamic import filter_formula, filter_gradients

ORDERS = {torch.float32: (1, 2, 4, 8), torch.float64: (1, 2, 4)}  # they divide the lanes of a vector


class Shape(ctypes.Structure):
    """``DynamicShape`` of dynamic.cpp, field by field."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in ("batch", "height", "width", "channels", "order", "hidden", "slices", "kernel", "threads")
    )


def filter_positions(v: Tensor, z: Tensor, bank: Tensor) -> Tensor:
    """Filter each position: see :func:`coattend.functional.dynamic.filter_positions`."""
    _check("filter_positions", v, z, bank)
    if not _is_supported(v):
        return _channels_last(filter_formula(v, z, bank))
    dtype = _computed_in(v)
    v_in, z_in = _by_position(v, dtype), _by_position(z, dtype)
    y = torch.empty_like(v_in)
    _run("forward", dtype, (v_in, z_in, bank.to(dtype).contiguous(), y), v, z, bank)
    return y.to(v.dtype).permute(0, 3, 4, 1, 2)


def filter_positions_backward(grad: Tensor, v: Tensor, z: Tensor, bank: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of :func:`filter_positions` with respect to v, z and the bank."""
    _check("filter_positions_backward", v, z, bank)
    check_gradient("filter_positions_backward", grad, v.shape, v)
    if not _is_supported(v):
        grad_v, grad_z, grad_bank = filter_gradients(grad, v, z, bank)
        return _channels_last(grad_v), _channels_last(grad_z), grad_bank.contiguous()
    dtype = _computed_in(v)
    inputs = (_by_position(grad, dtype), _by_position(v, dtype), _by_position(z, dtype), bank.to(dtype).contiguous())
    grad_v, grad_z = torch.empty_like(inputs[1]), torch.empty_like(inputs[2])
    grad_bank = inputs[3].new_empty(len(v), *bank.shape)
    _run("backward", dtype, (*inputs, grad_v, grad_z, grad_bank), v, z, bank)
    return (
        grad_v.to(v.dtype).permute(0, 3, 4, 1, 2),
        grad_z.to(z.dtype).permute(0, 3, 4, 1, 2),
        grad_bank.sum(0).to(bank.dtype),
    )


def _run(direction: str, dtype: torch.dtype, tensors: tuple[Tensor, ...], v: Tensor, z: Tensor, bank: Tensor) -> None:
    batch, channels, order, height, width = v.shape
    kernel_size = round(bank.shape[2] ** 0.5)
    sizes = (batch, height, width, channels, order, z.shape[1], bank.shape[1], kernel_size, torch.get_num_threads())
    kernel = getattr(cpu.library(), f"coattend_dynamic_{direction}_{cpu.TYPES[dtype]}")
    kernel(*(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors), ctypes.byref(Shape(*sizes)))


def _is_supported(v: Tensor) -> bool:
    is_plain = v.device.type == "cpu" and v.shape[2] in ORDERS[_computed_in(v)] and v.numel() > 0
    return is_plain and cpu.library() is not None


def _computed_in(v: Tensor) -> torch.dtype:
    return torch.promote_types(v.dtype, torch.float32)


def _by_position(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a map as (batch, height, width, channels, group), without a copy if that is how it is in memory."""
    return x.to(dtype).permute(0, 3, 4, 1, 2).contiguous()


def _channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 3, 4, 1, 2).contiguous().permute(0, 3, 4, 1, 2)


def _check(function: str, v: Tensor, z: Tensor, bank: Tensor) -> None:
    """Require tensors that fit together: the kernels would read beyond others."""
    check_tensor(function, "v", v, MAP, 5)
    check_tensor(function, "z", z, "(batch, hidden, group, height, width)", 5)
    check_tensor(function, "the bank", bank, "(hidden + 1, slices, k * k, group)", 4)
    batch, channels, order, height, width = v.shape
    rows, slices, taps, poses = bank.shape
    is_odd_square = taps in (k * k for k in range(1, 65, 2))
    fits = z.shape == (batch, rows - 1, order, height, width) and poses == order and is_odd_square
    if not fits or slices == 0 or channels % slices:
        raise ValueError(
            f"{function} expects v (batch, channels, group, height, width), z with the same batch, poses and size, and "
            f"a bank (hidden + 1, slices, k * k, group) with slices that divide the channels, got {tuple(v.shape)}, "
            f"{tuple(z.shape)} and {tuple(bank.shape)}; pass what generating_bank returns."
        )
    check_one_device(function, v, z, bank)


def _fake(v: Tensor, z: Tensor, bank: Tensor) -> Tensor:
    _check("filter_positions", v, z, bank)
    return _empty(v)


def _fake_backward(grad: Tensor, v: Tensor, z: Tensor, bank: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    _check("filter_positions_backward", v, z, bank)
    check_gradient("filter_positions_backward", grad, v.shape, v)
    return _empty(v), _empty(z), bank.new_empty(bank.shape)


def _empty(x: Tensor) -> Tensor:
    batch, channels, order, height, width = x.shape
    return x.new_empty(batch, height, width, channels, order).permute(0, 3, 4, 1, 2)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
    v, z, bank = ctx.saved_tensors
    if differentiates_again():
        return filter_gradients(grad, v, z, bank)
    return torch.ops.coattend.filter_positions_backward(grad, v, z, bank)


define("filter_positions(Tensor v, Tensor z, Tensor bank) -> Tensor", filter_positions, _fake)
define(
    "filter_positions_backward(Tensor grad, Tensor v, Tensor z, Tensor bank) -> (Tensor, Tensor, Tensor)",
    filter_positions_backward,
    _fake_backward,
)
torch.library.register_autograd("coattend::filter_positions", _backward, setup_context=_save, lib=LIBRARY)
