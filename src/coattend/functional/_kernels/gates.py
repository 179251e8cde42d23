"""``torch.ops.coattend.group_gate``: gates of channels and positions, in few passes over the map.

Maps are channels-last, (batch, height, width, channels, group) in memory, whatever the strides of the inputs.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from coattend.functional._kernels import cpu
from coattend.functional._kernels.library import LIBRARY, define, differentiate_first_output
from coattend.functional.checks import MAP, check_gradient, check_one_device, check_tensor
from coattend.functional.dispatch import differentiates_again
from coattend.functional.gates import GateBanks, gate_gradients, mask_formula

ORDERS = (1, 2, 4, 8, 16)
CHUNKS = 16
SHAPE = ("batch", "height", "width", "channels", "order", "hidden", "groups", "turns", "kernel", "chunks", "threads")
TYPES = {torch.float32: "float", torch.float64: "double", torch.bfloat16: "bfloat16"}


class Shape(ctypes.Structure):
    """``GateShape`` of gate.h, field by field."""

    _fields_ = tuple((name, ctypes.c_int64) for name in SHAPE)


def group_gate(x: Tensor, squeeze: Tensor, excite: Tensor, spatial: Tensor) -> tuple[Tensor, ...]:
    """Gate a map: see :func:`coattend.functional.gates.group_gate`.

    Returns the map, and for the backward pass the statistics over positions, what they are squeezed to, the gate of
    channels, the statistics over channels and the responses of the spatial filters; without kernels these are empty.
    """
    banks = GateBanks(squeeze, excite, spatial)
    _check("group_gate", x, banks)
    if not _is_supported(x):
        nothing = (x.new_empty(0) for _ in range(5))
        return _channels_last(x * mask_formula(x, banks)), *nothing
    planes = _by_position(x)
    y, state = torch.empty_like(planes), [x.new_empty(size, dtype=_computed_in(x)) for size in _sizes(x, banks)]
    _run("forward", x, banks, planes, *(_weights(bank, x) for bank in banks), *state, y)
    return y.permute(0, 3, 4, 1, 2), *state


def group_gate_backward(
    grad: Tensor,
    x: Tensor,
    squeeze: Tensor,
    excite: Tensor,
    spatial: Tensor,
    statistics: Tensor,
    hidden: Tensor,
    alpha: Tensor,
    maps: Tensor,
    responses: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of :func:`group_gate` with respect to the map and the banks."""
    banks = GateBanks(squeeze, excite, spatial)
    _check("group_gate_backward", x, banks)
    check_gradient("group_gate_backward", grad, x.shape, x)
    if not _is_supported(x):
        raise ValueError("group_gate_backward expects tensors that the C++ kernels support; differentiate the formula.")
    given = statistics, hidden, alpha, maps, responses
    if [tuple(tensor.shape) for tensor in given] != _sizes(x, banks):
        raise ValueError(
            f"group_gate_backward expects the statistics and gates that group_gate returned for x {tuple(x.shape)}, "
            f"got shapes {', '.join(str(tuple(tensor.shape)) for tensor in given)}."
        )
    dtype, planes = _computed_in(x), _by_position(x)
    state = [tensor.to(dtype).contiguous() for tensor in given]
    weights = [_weights(bank, x) for bank in banks]
    grad_x, *gradients = (torch.empty_like(tensor) for tensor in (planes, *weights))
    _run("backward", x, banks, _by_position(grad.to(x.dtype)), planes, *weights, *state, grad_x, *gradients)
    grad_squeeze, grad_excite, grad_spatial = (
        gradient.to(bank.dtype) for gradient, bank in zip(gradients, banks, strict=True)
    )
    return grad_x.permute(0, 3, 4, 1, 2), grad_squeeze, grad_excite, grad_spatial


def _sizes(x: Tensor, banks: GateBanks) -> list[tuple[int, ...]]:
    """Return the shapes of what forward leaves for backward."""
    batch, channels, order, height, width = x.shape
    rows = (batch, 3, channels, order), (batch, 2, len(banks.squeeze)), (batch, channels, order)
    return [*rows, (batch, height, width, 2, order), (batch, height, width, len(banks.spatial))]


def _chunks(x: Tensor) -> int:
    """Return the number of chunks of a batch whose sums are kept apart, so that they do not depend on the threads."""
    return min(len(x), CHUNKS)


def _run(step: str, x: Tensor, banks: GateBanks, *tensors: Tensor) -> None:
    batch, channels, order, height, width = x.shape
    hidden, inside = banks.squeeze.shape
    turns, kernel = len(banks.spatial) // order, banks.spatial.shape[-1]
    groups, chunks, threads = channels * order // inside, _chunks(x), torch.get_num_threads()
    function = getattr(cpu.library(), f"coattend_gate_{step}_{TYPES[x.dtype]}")
    shape = Shape(batch, height, width, channels, order, hidden, groups, turns, kernel, chunks, threads)
    function(*(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors), ctypes.byref(shape))


def _is_supported(x: Tensor) -> bool:
    fits = x.device.type == "cpu" and x.dtype in TYPES and x.shape[2] in ORDERS and x.numel() > 0
    return fits and cpu.library() is not None


def _computed_in(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _weights(bank: Tensor, x: Tensor) -> Tensor:
    return bank.to(_computed_in(x)).contiguous()


def _by_position(x: Tensor) -> Tensor:
    """Return a map as (batch, height, width, channels, group), without a copy if that is how it is in memory."""
    return x.permute(0, 3, 4, 1, 2).contiguous()


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
    turns = len(banks.spatial) // n if n else 0
    fits = groups and turns and hidden % groups == 0 and k % 2 == 1
    if not fits or banks.excite.shape != (planes, hidden // groups) or banks.spatial.shape != (turns * n, 2 * n, k, k):
        raise ValueError(
            f"{function} expects the banks of a gate for x {tuple(x.shape)}, got {tuple(banks.squeeze.shape)}, "
            f"{tuple(banks.excite.shape)} and {tuple(banks.spatial.shape)}; pass those of a GroupGate2d."
        )
    check_one_device(function, x, *banks)


def _fake(x: Tensor, squeeze: Tensor, excite: Tensor, spatial: Tensor) -> tuple[Tensor, ...]:
    batch, channels, order, height, width = x.shape
    y = x.new_empty(batch, height, width, channels, order).permute(0, 3, 4, 1, 2)
    if not _is_supported(x):
        return y, *(x.new_empty(0) for _ in range(5))
    sizes = _sizes(x, GateBanks(squeeze, excite, spatial))
    return y, *(x.new_empty(size, dtype=_computed_in(x)) for size in sizes)


def _fake_backward(
    grad: Tensor, x: Tensor, squeeze: Tensor, excite: Tensor, spatial: Tensor, *rest: Tensor
) -> tuple[Tensor, ...]:
    batch, channels, order, height, width = x.shape
    grad_x = x.new_empty(batch, height, width, channels, order).permute(0, 3, 4, 1, 2)
    return grad_x, *(bank.new_empty(bank.shape) for bank in (squeeze, excite, spatial))


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs, *output[1:])


@differentiate_first_output
def _backward(ctx: Any, grad: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
    x, *others = ctx.saved_tensors
    if differentiates_again() or not others[3].numel():
        return gate_gradients(grad, x, GateBanks(*others[:3]))
    return torch.ops.coattend.group_gate_backward(grad, x, *others)


class GateFunction(torch.autograd.Function):
    """The operator outside of graphs, where what torch makes of an operator with gradients takes 0.1 ms more."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        """Return the gated map, given x and the banks."""
        y, *state = group_gate(*tensors)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *state)
        return y

    backward = staticmethod(_backward)


define(
    "group_gate(Tensor x, Tensor squeeze, Tensor excite, Tensor spatial)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    group_gate,
    _fake,
)
define(
    "group_gate_backward(Tensor grad, Tensor x, Tensor squeeze, Tensor excite, Tensor spatial, Tensor statistics,"
    " Tensor hidden, Tensor alpha, Tensor maps, Tensor responses) -> (Tensor, Tensor, Tensor, Tensor)",
    group_gate_backward,
    _fake_backward,
)
torch.library.register_autograd("coattend::group_gate", _backward, setup_context=_save, lib=LIBRARY)
