"""``torch.ops.coattend.pose_self_attention``: weighted means over the poses of each position, in one pass.

Positions are rows with the poses innermost; the weights, order^2 numbers per head, are saved for the backward pass.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from coattend.functional._kernels import cpu
from coattend.functional._kernels.library import LIBRARY, define, differentiate_first_output
from coattend.functional.checks import check_gradient, check_one_device, check_tensor
from coattend.functional.dispatch import differentiates_again
from coattend.functional.pose_self_attention import attend_rows_formula, attend_rows_gradients

ORDERS = (2, 4, 8, 16)
CHUNK = 256  # positions whose gradients of the bias are summed together, as in pose_self_attention.cpp
AXES = "(positions, 3, heads, channels, group)"


class Shape(ctypes.Structure):
    """``PoseShape`` of pose_self_attention.cpp, field by field."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("positions", "heads", "width", "order", "threads"))


def pose_self_attention(rows: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Attend: rows (positions, 3, heads, channels, group) of queries, keys and values, bias (heads, group, group).

    Returns (positions, heads, channels, group), and the weights for the backward pass, empty without kernels.
    """
    _check("pose_self_attention", rows, bias)
    if not _is_supported(rows):
        return attend_rows_formula(rows, bias).contiguous(), rows.new_empty(0)
    positions, _, heads, width, order = rows.shape
    given = rows.to(_computed_in(rows)).contiguous()
    y = given.new_empty(positions, heads, width, order)
    weights = given.new_empty(positions, heads, order, order)
    _run("forward", given, given, bias.to(given.dtype).transpose(1, 2).contiguous(), weights, y)
    return y.to(rows.dtype), weights


def pose_self_attention_backward(grad: Tensor, rows: Tensor, bias: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of :func:`pose_self_attention` with respect to the rows and the bias."""
    _check("pose_self_attention_backward", rows, bias)
    positions, _, heads, width, order = rows.shape
    check_gradient("pose_self_attention_backward", grad, (positions, heads, width, order), rows)
    if weights.shape != (positions, heads, order, order):
        raise ValueError(
            f"pose_self_attention_backward expects the weights {(positions, heads, order, order)} that "
            f"pose_self_attention returned, got {tuple(weights.shape)}."
        )
    given = rows.to(_computed_in(rows)).contiguous()
    grad_rows = torch.empty_like(given)
    grad_bias = given.new_empty(-(-positions // CHUNK), heads, order, order)
    saved = weights.to(given.dtype).contiguous()
    _run("backward", given, grad.to(given.dtype).contiguous(), given, saved, grad_rows, grad_bias)
    return grad_rows.to(rows.dtype), grad_bias.sum(0).transpose(1, 2).to(bias.dtype).contiguous()


def _run(direction: str, rows: Tensor, *tensors: Tensor) -> None:
    positions, _, heads, width, order = rows.shape
    kernel = getattr(cpu.library(), f"coattend_poses_{direction}_{cpu.TYPES[rows.dtype]}")
    shape = Shape(positions, heads, width, order, torch.get_num_threads())
    kernel(*(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors), ctypes.byref(shape))


def _is_supported(rows: Tensor) -> bool:
    is_plain = rows.device.type == "cpu" and rows.shape[-1] in ORDERS and rows.numel() > 0
    return is_plain and cpu.library() is not None


def _computed_in(rows: Tensor) -> torch.dtype:
    return torch.promote_types(rows.dtype, torch.float32)


def _check(function: str, rows: Tensor, bias: Tensor) -> None:
    """Require tensors that fit together: the kernels would read beyond others."""
    check_tensor(function, "rows", rows, AXES, 5)
    check_tensor(function, "bias", bias, "(heads, group, group)", 3)
    _, parts, heads, _, order = rows.shape
    if parts != 3 or bias.shape != (heads, order, order):
        raise ValueError(
            f"{function} expects rows {AXES} and a bias ({heads}, {order}, {order}), got {tuple(rows.shape)} and "
            f"{tuple(bias.shape)}."
        )
    check_one_device(function, rows, bias)


def _fake(rows: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    _check("pose_self_attention", rows, bias)
    positions, _, heads, width, order = rows.shape
    weights = (positions, heads, order, order) if _is_supported(rows) else (0,)
    dtype = _computed_in(rows) if _is_supported(rows) else rows.dtype
    return rows.new_empty(positions, heads, width, order), rows.new_empty(weights, dtype=dtype)


def _fake_backward(grad: Tensor, rows: Tensor, bias: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    return rows.new_empty(rows.shape), bias.new_empty(bias.shape)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs, output[1])


@differentiate_first_output
def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    rows, bias, weights = ctx.saved_tensors
    if differentiates_again() or not weights.numel():
        return attend_rows_gradients(grad, rows, bias)
    return torch.ops.coattend.pose_self_attention_backward(grad, rows, bias, weights)


define("pose_self_attention(Tensor rows, Tensor bias) -> (Tensor, Tensor)", pose_self_attention, _fake)
define(
    "pose_self_attention_backward(Tensor grad, Tensor rows, Tensor bias, Tensor weights) -> (Tensor, Tensor)",
    pose_self_attention_backward,
    _fake_backward,
)
torch.library.register_autograd("coattend::pose_self_attention", _backward, setup_context=_save, lib=LIBRARY)
