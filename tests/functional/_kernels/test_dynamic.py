"""The operator of generated filters: equal to the formula in every order and type, with its gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coattend.functional._kernels import cpu, dynamic
from coattend.functional.dynamic import ContextNorm, filter_formula, filter_gradients

# Sizes of which nothing is a multiple of a vector or of the positions that are computed together.
SIZES = {"e4": (2, 16, 16, 5), "odd": (2, 26, 5, 3), "many": (3, 27, 7, 7)}
# Without hidden channels filters are constant. 9 is a kernel that the compiler does not know.
SIZES |= {f"constant, {k}": (slices, 3 * slices, 0, k) for slices, k in ((2, 1), (2, 3), (1, 5), (3, 7), (5, 9))}
KERNELS = pytest.mark.skipif(cpu.library() is None, reason="the kernels are not available")


def tensors(size: str, order: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    slices, channels, hidden, kernel = SIZES[size]
    v, z = torch.randn(2, channels, order, 6, 7, dtype=dtype), torch.randn(2, hidden, order, 6, 7, dtype=dtype)
    return v, z, torch.randn(hidden + 1, slices, kernel**2, order, dtype=dtype)


def error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected).norm() / expected.norm()) if expected.numel() else 0.0


def norm(z: Tensor) -> ContextNorm:
    return ContextNorm(torch.randn(z.shape[1]).to(z.dtype), torch.randn(z.shape[1]).to(z.dtype), 1e-3)


@KERNELS
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("order", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("size", [*SIZES, "e4, norm", "odd, norm"])
def test_kernels_compute_the_formula(size: str, order: int, dtype: torch.dtype) -> None:
    v, z, bank = tensors(size.removesuffix(", norm"), order, dtype)
    of_norm = norm(z) if size.endswith("norm") else None
    z = 2 + 3 * z
    wide = [t.double() for t in (v, z, bank)]
    wide_norm = None if of_norm is None else ContextNorm(of_norm.weight.double(), of_norm.bias.double(), of_norm.eps)
    tolerance = 1e-14 if dtype == torch.float64 else 1e-6
    y = torch.ops.coattend.filter_positions(v, z, bank, *(of_norm or ()))
    assert y.dtype == dtype
    assert error(y, filter_formula(*wide, wide_norm)) < tolerance
    grad = torch.randn_like(v)
    gradients = torch.ops.coattend.filter_positions_backward(grad, v, z, bank, *(of_norm or ()))
    for actual, expected in zip(gradients, filter_gradients(grad.double(), *wide, wide_norm), strict=True):
        assert actual.shape == expected.shape
        assert error(actual, expected) < tolerance


@pytest.mark.parametrize("size", ["odd", "constant, 3", "odd, norm"])
def test_the_written_gradients_are_those_of_autograd(size: str) -> None:
    inputs = [t.requires_grad_() for t in tensors(size.removesuffix(", norm"), 3)]
    of_norm = norm(inputs[1]) if size.endswith("norm") else None
    parameters = [t.requires_grad_() for t in of_norm[:2]] if of_norm else []
    grad = torch.randn_like(inputs[0])
    y = filter_formula(*inputs, of_norm)
    expected = torch.autograd.grad(y, [*inputs, *parameters], grad, materialize_grads=True)
    for actual, other in zip(filter_gradients(grad, *inputs, of_norm), expected, strict=False):
        torch.testing.assert_close(actual, other, rtol=1e-11, atol=1e-12)


def test_gradients_of_the_operator() -> None:
    inputs = [
        torch.randn(1, 4, 2, 2, 3, requires_grad=True),
        torch.randn(1, 2, 2, 2, 3, requires_grad=True),
        torch.randn(3, 2, 9, 2, requires_grad=True),
    ]
    assert torch.autograd.gradcheck(torch.ops.coattend.filter_positions, inputs)
    assert torch.autograd.gradgradcheck(torch.ops.coattend.filter_positions, inputs)
    inputs += [torch.randn(2, requires_grad=True), torch.randn(2, requires_grad=True)]
    assert torch.autograd.gradcheck(torch.ops.coattend.filter_positions, inputs)
    assert torch.autograd.gradgradcheck(torch.ops.coattend.filter_positions, inputs)


def test_torch_accepts_the_operator() -> None:
    inputs = tuple(t.requires_grad_() for t in tensors("odd", 4, torch.float32))
    torch.library.opcheck(torch.ops.coattend.filter_positions.default, inputs)
    torch.library.opcheck(torch.ops.coattend.filter_positions.default, (*inputs, *norm(inputs[1])))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", ["e4", "constant, 3", "constant, 9"])
def test_narrow_types_are_summed_in_float32(size: str, dtype: torch.dtype) -> None:
    v, z, bank = tensors(size, 4, dtype)
    y = torch.ops.coattend.filter_positions(v, z.float(), bank.float())
    assert y.dtype == dtype
    assert error(y, filter_formula(v.double(), z.double(), bank.double())) < 2 * torch.finfo(dtype).eps
    grad = torch.randn_like(v)
    gradients = torch.ops.coattend.filter_positions_backward(grad, v, z.float(), bank.float())[:3]
    assert [t.dtype for t in gradients] == [dtype, torch.float32, torch.float32]
    expected = filter_gradients(grad.double(), v.double(), z.double(), bank.double())
    for actual, other in zip(gradients, expected, strict=False):
        assert error(actual, other) < 2 * torch.finfo(actual.dtype).eps


@KERNELS
@pytest.mark.parametrize("size", ["e4", "constant, 3"])
def test_results_depend_neither_on_threads_nor_on_strides(size: str) -> None:
    v, z, bank = tensors(size, 4, torch.float32)
    by_position = [t.permute(0, 3, 4, 1, 2).contiguous().permute(0, 3, 4, 1, 2) for t in (v, z)]
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for maps in ((v, z), by_position):
            y = torch.ops.coattend.filter_positions(*maps, bank)
            assert y.permute(0, 3, 4, 1, 2).is_contiguous()
            results.append((y, *torch.ops.coattend.filter_positions_backward(y, *maps, bank)))
    torch.set_num_threads(1)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(other, results[0], strict=True))


def test_tensors_that_do_not_fit_are_refused() -> None:
    v, z, bank = tensors("e4", 4)
    for wrong in ((v, z[..., 1:], bank), (v, z, bank[:-1]), (v[:, 1:], z, bank), (v, z, bank[:, :, :-1])):
        with pytest.raises(ValueError, match="pass what generating_bank returns"):
            dynamic.filter_positions(*wrong)
    for weight, bias in ((torch.ones(16), None), (torch.ones(15), torch.ones(15)), (torch.ones(16), torch.ones(15))):
        with pytest.raises(ValueError, match="weight and bias of"):
            dynamic.filter_positions(v, z, bank, weight, bias)
