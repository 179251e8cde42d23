"""``torch.ops.coattend.filter_positions``: generated filters that are neither stored nor saved for the backward pass.

Results are channels-last, (batch, height, width, channels, group) in memory, whatever the strides of the inputs.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from coattend.functional._kernels import constant_filters, cpu
from coattend.functional._kernels.library import LIBRARY, define
from coattend.functional.checks import MAP, check_gradient, check_one_device, check_tensor
from coattend.functional.dispatch import differentiates_again
from coattend.functional.dynamic import ContextNorm, filter_formula, filter_gradients

ORDERS = {torch.float32: (1, 2, 4, 8), torch.float64: (1, 2, 4)}  # they divide the lanes of a vector


class Shape(ctypes.Structure):
    """``DynamicShape`` of dynamic.cpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "height", "width", "channels", "order", "hidden", "slices")),
        *((name, ctypes.c_int64) for name in ("kernel", "threads")),
        ("eps", ctypes.c_double),
    )


def filter_positions(
    v: Tensor, z: Tensor, bank: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Filter each position: see :func:`coattend.functional.dynamic.filter_positions`; weight, bias, eps: the norm."""
    _check("filter_positions", v, z, bank, weight, bias)
    if z.shape[1] == 0 and constant_filters.supports(v):
        return constant_filters.filter_planes(_by_position(v, v.dtype), bank[0]).permute(0, 3, 4, 1, 2)
    if not _is_supported(v):
        return _channels_last(filter_formula(v, z, bank, _norm(weight, bias, eps)))
    dtype = _computed_in(v)
    v_in, z_in = _by_position(v, dtype), _by_position(z, dtype)
    y = torch.empty_like(v_in)
    constants = [_constant(t, dtype) for t in (bank, weight, bias)]
    _run("forward", dtype, (v_in, z_in, *constants, y), v, z, bank, eps)
    return y.to(v.dtype).permute(0, 3, 4, 1, 2)


def filter_positions_backward(
    grad: Tensor,
    v: Tensor,
    z: Tensor,
    bank: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of :func:`filter_positions` for v, z, bank, weight and bias; two may be empty."""
    _check("filter_positions_backward", v, z, bank, weight, bias)
    check_gradient("filter_positions_backward", grad, v.shape, v)
    if z.shape[1] == 0 and constant_filters.supports(v):
        return _constant_gradients(grad, v, z, bank, weight, bias)
    if not _is_supported(v):
        grad_v, grad_z, *others = filter_gradients(grad, v, z, bank, _norm(weight, bias, eps))
        grad_bank, grad_weight, grad_bias = (t.contiguous() for t in others)
        return _channels_last(grad_v), _channels_last(grad_z), grad_bank, grad_weight, grad_bias
    dtype = _computed_in(v)
    constants = [_constant(t, dtype) for t in (bank, weight, bias)]
    maps = (_by_position(grad, dtype), _by_position(v, dtype), _by_position(z, dtype))
    grad_v, grad_z = torch.empty_like(maps[1]), torch.empty_like(maps[2])
    partial = [grad_v.new_empty(len(v), *(() if t is None else t.shape)) for t in (bank, weight, bias)]
    _run("backward", dtype, (*maps, *constants, grad_v, grad_z, *partial), v, z, bank, eps)
    grad_bank, grad_weight, grad_bias = (
        z.new_empty(0) if t is None else p.sum(0).to(t.dtype)
        for p, t in zip(partial, (bank, weight, bias), strict=True)
    )
    grads = (g.to(t.dtype).permute(0, 3, 4, 1, 2) for g, t in ((grad_v, v), (grad_z, z)))
    return *grads, grad_bank, grad_weight, grad_bias  # type: ignore[return-value]


def _constant_gradients(
    grad: Tensor, v: Tensor, z: Tensor, bank: Tensor, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    up, planes = (_by_position(t, v.dtype) for t in (grad, v))
    grad_v, grad_filters = constant_filters.filter_planes_backward(up, planes, bank[0])
    of_norm = (z.new_empty(0) if t is None else torch.zeros_like(t) for t in (weight, bias))  # of no channels
    return grad_v.permute(0, 3, 4, 1, 2), torch.empty_like(z), grad_filters[None].contiguous(), *of_norm  # type: ignore[return-value]


def _run(
    direction: str,
    dtype: torch.dtype,
    tensors: tuple[Tensor | None, ...],
    v: Tensor,
    z: Tensor,
    bank: Tensor,
    eps: float,
) -> None:
    batch, channels, order, height, width = v.shape
    kernel_size = round(bank.shape[2] ** 0.5)
    sizes = (batch, height, width, channels, order, z.shape[1], bank.shape[1], kernel_size, torch.get_num_threads())
    kernel = getattr(cpu.library(), f"coattend_dynamic_{direction}_{cpu.TYPES[dtype]}")
    addresses = (ctypes.c_void_p(None if tensor is None else tensor.data_ptr()) for tensor in tensors)
    kernel(*addresses, ctypes.byref(Shape(*sizes, eps)))


def _norm(weight: Tensor | None, bias: Tensor | None, eps: float) -> ContextNorm | None:
    return None if weight is None or bias is None else ContextNorm(weight, bias, eps)


def _constant(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if tensor is None else tensor.to(dtype).contiguous()


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


def _check(
    function: str, v: Tensor, z: Tensor, bank: Tensor, weight: Tensor | None = None, bias: Tensor | None = None
) -> None:
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
    if (weight is None) != (bias is None):
        raise ValueError(f"{function} expects weight and bias of a norm, or neither, got one of them; pass both.")
    if weight is not None and bias is not None:
        for name, tensor in (("weight", weight), ("bias", bias)):
            check_tensor(function, name, tensor, "(hidden,)", 1)
        if weight.shape != bias.shape or len(weight) != z.shape[1]:
            raise ValueError(
                f"{function} expects weight and bias of the norm for each of {z.shape[1]} channels of z, got "
                f"{len(weight)} and {len(bias)}."
            )
        check_one_device(function, v, weight, bias)
    check_one_device(function, v, z, bank)


def _fake(
    v: Tensor, z: Tensor, bank: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    _check("filter_positions", v, z, bank, weight, bias)
    return _empty(v)


def _fake_backward(
    grad: Tensor,
    v: Tensor,
    z: Tensor,
    bank: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    _check("filter_positions_backward", v, z, bank, weight, bias)
    check_gradient("filter_positions_backward", grad, v.shape, v)
    of_norm = (z.new_empty(0) if t is None else t.new_empty(t.shape) for t in (weight, bias))
    return _empty(v), _empty(z), bank.new_empty(bank.shape), *of_norm  # type: ignore[return-value]


def _empty(x: Tensor) -> Tensor:
    batch, channels, order, height, width = x.shape
    return x.new_empty(batch, height, width, channels, order).permute(0, 3, 4, 1, 2)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    v, z, bank, weight, bias = ctx.saved_tensors
    if differentiates_again():
        gradients = filter_gradients(grad, v, z, bank, _norm(weight, bias, ctx.eps))
    else:
        gradients = torch.ops.coattend.filter_positions_backward(grad, v, z, bank, weight, bias, ctx.eps)
    return *gradients[:3], *(gradients[3:] if weight is not None else (None, None)), None


NORM = "Tensor? weight=None, Tensor? bias=None, float eps=1e-05"
define(f"filter_positions(Tensor v, Tensor z, Tensor bank, {NORM}) -> Tensor", filter_positions, _fake)
define(
    f"filter_positions_backward(Tensor grad, Tensor v, Tensor z, Tensor bank, {NORM})"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    filter_positions_backward,
    _fake_backward,
)
torch.library.register_autograd("coattend::filter_positions", _backward, setup_context=_save, lib=LIBRARY)
