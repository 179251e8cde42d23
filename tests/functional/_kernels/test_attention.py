"""The fused operators against the plain formula: values, gradients, ties, types, shapes and torch's tools."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import coattend as ca
from coattend.functional import build_kernels, co_attention
from coattend.functional._kernels import cpu
from coattend.functional._kernels.attention import attend_gradients, attend_slices_gradients
from coattend.functional.attention import attend_formula, attend_slices_formula, plane_index

OPERATOR = torch.ops.coattend.co_attention
ORDERS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
SIZES = ((1, 1), (3, 5), (4, 4), (9, 9))  # shorter than a vector, with a remainder, without


def example(order: int, size: tuple[int, int], channels: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """A map, matrices and an upstream gradient, which is 0 where two poses nearly tie: there float32 may decide
    for the other one, and the gradient jumps."""
    x, matrix = torch.randn(2, channels, order, *size), torch.randn(channels, order, order)
    up = torch.randn_like(x)
    if order > 1:
        logits = torch.einsum("bchyx,chg->bcgyx", x, matrix) / order
        highest = logits.topk(2, dim=2).values
        up *= (highest[:, :, :1] - highest[:, :, 1:]) > 1e-4
    return x, matrix, up


def gradients(function: object, x: Tensor, matrix: Tensor, up: Tensor, *rest: object) -> list[Tensor]:
    leaves = [x.detach().requires_grad_(), matrix.detach().requires_grad_()]
    y = function(*leaves, *rest)
    return [y.detach(), *torch.autograd.grad(y, leaves, up)]


def assert_near(ours: list[Tensor], exact: list[Tensor], tolerance: float) -> None:
    for mine, other in zip(ours, exact, strict=True):
        assert mine.shape == other.shape
        scale = float(other.abs().max()) if other.numel() else 1.0
        torch.testing.assert_close(mine.double(), other.double(), rtol=0, atol=tolerance * max(scale, 1.0))


def test_the_kernels_are_what_is_tested_here() -> None:
    build_kernels()
    assert cpu.supports(torch.zeros(1), 32), "no C++ compiler: these tests compare the formula with itself"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("order", ORDERS)
def test_equals_the_formula_in_double_and_to_five_digits_in_single(order: int, size: tuple[int, int]) -> None:
    x, matrix, up = example(order, size)
    exact = gradients(attend_formula, x, matrix, up)
    assert_near(gradients(OPERATOR, x, matrix, up), exact, 1e-13)
    assert_near(gradients(OPERATOR, x.float(), matrix.float(), up.float()), exact, 1e-5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["C2", "C3", "C4", "D4", "C16"])
def test_slices_equal_the_formula(name: str, size: tuple[int, int]) -> None:
    layer = ca.nn.SliceCoAttentiveConv2d(2, 3, 3, name)
    order, rows = layer.group.order, layer.rows
    planes, matrix = torch.randn(2, 3 * order**2, *size), torch.randn(3 * order, order, order)
    index = plane_index(planes, rows, order)
    assert sorted(index.tolist()) == list(range(planes.shape[1]))
    up = torch.randn(2, 3, order, *size)
    exact = gradients(attend_slices_formula, planes, matrix, up, index, order)
    ours = gradients(torch.ops.coattend.slice_attention, planes, matrix, up, rows, order)
    assert_near(ours, exact, 1e-13)
    single = torch.ops.coattend.slice_attention(planes.float(), matrix.float(), rows, order)
    assert_near([single], exact[:1], 1e-5)


def test_the_formula_for_gradients_is_that_of_autograd() -> None:
    x, matrix, up = example(4, (3, 5))
    assert_near(list(attend_gradients(up, x, matrix)), gradients(attend_formula, x, matrix, up)[1:], 1e-13)
    index = torch.randperm(24)
    planes, matrix, up = torch.randn(2, 24, 3, 5), torch.randn(6, 4, 4), torch.randn(2, 2, 4, 3, 5)
    ours = attend_slices_gradients(up, planes, matrix, index, 3)
    assert_near(list(ours), gradients(attend_slices_formula, planes, matrix, up, index, 3)[1:], 1e-13)


@pytest.mark.parametrize("order", [2, 4, 7])
def test_gradcheck_first_and_second_order(order: int) -> None:
    x = torch.randn(1, 2, order, 2, 2, requires_grad=True)
    matrix = torch.randn(2, order, order, requires_grad=True)
    assert torch.autograd.gradcheck(OPERATOR, (x, matrix))
    assert torch.autograd.gradgradcheck(OPERATOR, (x, matrix))
    planes = torch.randn(1, 2 * order**2, 2, 1, requires_grad=True)
    matrices = torch.randn(2 * order, order, order, requires_grad=True)
    rows = ca.nn.SliceCoAttentiveConv2d(1, 2, 1, ca.cyclic(order)).rows
    sliced = lambda p, m: torch.ops.coattend.slice_attention(p, m, rows, order)  # noqa: E731
    assert torch.autograd.gradcheck(sliced, (planes, matrices))
    assert torch.autograd.gradgradcheck(sliced, (planes, matrices))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("order", [3, 4, 8])
def test_ties_share_the_gradient_evenly_as_amax_does(order: int, dtype: torch.dtype) -> None:
    x, up = torch.randn(2, 3, order, 5, 5, dtype=dtype), torch.randn(2, 3, order, 5, 5, dtype=dtype)
    matrix = torch.zeros(3, order, order, dtype=dtype)
    assert_near(gradients(OPERATOR, x, matrix, up), gradients(attend_formula, x, matrix, up), 1e-6)
    matrix[:, :, 1:] = -1.0  # every target but the first alike: they tie wherever the sum of the responses is negative
    assert_near(gradients(OPERATOR, x, matrix, up), gradients(attend_formula, x, matrix, up), 1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
@pytest.mark.parametrize("order", [2, 4, 16])  # powers of two: dividing by the order is exact
def test_the_exponential_is_accurate_over_its_whole_range(order: int, dtype: torch.dtype, tolerance: float) -> None:
    depth = torch.linspace(0, 80, 4001, dtype=dtype)
    x = torch.ones(1, 1, order, 1, 4001, dtype=dtype)
    x[0, 0, 0, 0] = order * depth
    matrix = torch.zeros(1, order, order, dtype=dtype)
    matrix[0, 0, 1] = -1.0  # logit 0 for all poses but 1, where it is -depth
    mask = OPERATOR(x, matrix)[0, 0, 1, 0]
    exact = torch.exp(-(order * depth).double() / order)
    assert float(((mask.double() - exact) / exact).abs().max()) < tolerance


def test_the_strongest_pose_passes_unchanged() -> None:
    for order in (2, 4, 6, 8):
        x = 100 * torch.randn(2, 3, order, 7, 7, dtype=torch.float32)
        matrix = torch.randn(3, order, order, dtype=torch.float32)
        assert ((OPERATOR(x, matrix) == x).sum(2) >= 1).all()


def test_not_a_number_is_not_swallowed() -> None:
    x = torch.randn(1, 1, 4, 3, 3, dtype=torch.float32)
    x[0, 0, 2, 1, 1] = float("nan")
    nan = OPERATOR(x, torch.randn(1, 4, 4, dtype=torch.float32)).isnan()
    assert nan[..., 1, 1].all()
    assert nan.sum() == 4


@pytest.mark.parametrize("order", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("place", ["x", "matrix", "up"])
def test_what_is_not_finite_spreads_as_in_the_formula(place: str, value: float, order: int) -> None:
    for dtype in (torch.float32, torch.float64):
        for trial in range(4):
            tensors = dict(zip(("x", "matrix", "up"), (t.to(dtype) for t in example(order, (3, 5))), strict=True))
            tensors["matrix"].view(-1)[trial % 3] = 0.0 if trial % 2 else 1.0
            tensors[place].view(-1)[torch.randint(tensors[place].numel(), ())] = value
            ours = gradients(OPERATOR, **tensors)
            exact = gradients(attend_formula, **tensors)
            for mine, other in zip(ours, exact, strict=True):
                assert torch.equal(mine.isnan(), other.isnan())
                assert torch.equal(mine.isinf(), other.isinf())


@pytest.mark.parametrize("scale", [1e6, 1e8])
@pytest.mark.parametrize("order", [2, 4, 8, 16])
def test_gradients_of_large_activations_are_those_of_the_formula(order: int, scale: float) -> None:
    """There one pose has nearly all of the mask, and rounding errors of products are all that a fused sum leaves."""
    x, matrix, up = (t.float() for t in (scale * torch.randn(2, 3, order, 9, 9), *example(order, (9, 9))[1:]))
    assert_near(gradients(OPERATOR, x, matrix, up), gradients(attend_formula, x, matrix, up), 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types_compute_in_single(dtype: torch.dtype) -> None:
    x, matrix, up = (t.to(dtype) for t in example(4, (5, 5)))
    ours = gradients(OPERATOR, x, matrix, up)
    assert {t.dtype for t in ours} == {dtype}
    assert_near(ours, gradients(attend_formula, x.float(), matrix.float(), up.float()), 4 * torch.finfo(dtype).eps)


def test_any_strides_an_empty_batch_and_groups_beyond_the_kernels() -> None:
    x, matrix, up = example(4, (5, 6))
    exact = gradients(attend_formula, x, matrix, up)
    strided = x.permute(3, 4, 0, 2, 1).contiguous().permute(2, 4, 3, 0, 1)
    assert not strided.is_contiguous()
    assert_near(gradients(OPERATOR, strided, matrix, up.mT.contiguous().mT), exact, 1e-13)
    assert [t.shape[0] for t in gradients(OPERATOR, x[:0], matrix, up[:0])[:2]] == [0, 0]
    G = ca.cyclic(65)
    assert not cpu.supports(x, 65)
    assert co_attention(torch.randn(1, 1, 65, 2, 2), torch.randn(1, 65), G).shape == (1, 1, 65, 2, 2)


BACKWARD = torch.ops.coattend.co_attention_backward
SLICES = torch.ops.coattend.slice_attention
ROWS = list(range(8))  # of two slices over four poses; three channels have 24 planes


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: OPERATOR(torch.ones(1, 3, 4, 2, 2), torch.zeros(4, 4, 4)), r"\(3, 4, 4\).*got \(4, 4, 4\)"),
        (lambda: OPERATOR(torch.ones(1, 3000, 64, 1, 1), torch.zeros(3000, 64, 1)), r"got \(3000, 64, 1\)"),
        (lambda: OPERATOR(torch.ones(1, 3, 4, 2), torch.zeros(3, 4, 4)), r"float64 tensor \(1, 3, 4, 2\)"),
        (lambda: OPERATOR(torch.ones(1, 3, 0, 2, 2), torch.zeros(3, 0, 0)), "at least one pose"),
        (lambda: OPERATOR(torch.ones(1, 3, 4, 2, 2).long(), torch.zeros(3, 4, 4)), r"int64 tensor.*\.float\(\)"),
        (lambda: OPERATOR(torch.ones(1, 3, 4, 2, 2), torch.zeros(3, 4, 4) * 1j), "complex128 tensor"),
        (lambda: OPERATOR(torch.ones(1, 3, 4, 2, 2), torch.zeros(3, 4, 4).to("meta")), "one device, got cpu and meta"),
        (lambda: OPERATOR(torch.ones(1, 3, 4, 2, 2).to("meta"), torch.zeros(3, 4, 4)), "one device, got meta and cpu"),
        (lambda: BACKWARD(torch.ones(2), torch.ones(1, 3, 4, 2, 2), torch.ones(3, 4, 4)), r"\(1, 3, 4, 2, 2\).*\(2,\)"),
        (
            lambda: BACKWARD(torch.ones(1, 3, 4, 2, 2).to("meta"), torch.ones(1, 3, 4, 2, 2), torch.ones(3, 4, 4)),
            "one device",
        ),
        (
            lambda: SLICES(torch.ones(2, 24, 2, 2), torch.ones(6, 4, 4), ROWS, -(10**7)),
            "got numbers from -20000000 to 7",
        ),
        (lambda: SLICES(torch.ones(2, 24, 2, 2), torch.ones(6, 4, 4), [-(10**6)] * 8, 8), "got numbers from -1000000"),
        (lambda: SLICES(torch.ones(2, 24, 2, 2), torch.ones(6, 4, 4), [0] * 7 + [95], 8), "numbers from 0 to 111"),
        (lambda: SLICES(torch.ones(2, 24, 2, 2), torch.ones(6, 4, 4), [0, 0, *ROWS[2:]], 8), "21 of them different"),
        (lambda: SLICES(torch.ones(2, 24, 2, 2), torch.ones(6, 4, 4), [], 8), "0 rows.*a multiple of 4 rows"),
        (lambda: SLICES(torch.ones(2, 24, 2, 2), torch.ones(6, 4, 4), ROWS[:7], 8), "7 rows.*a multiple of 4 rows"),
        (lambda: SLICES(torch.ones(2, 20, 2, 2), torch.ones(6, 4, 4), ROWS, 8), "pass 24 planes"),
        (lambda: SLICES(torch.ones(2, 24, 2, 2), torch.ones(6, 4, 4, device="meta"), ROWS, 8), "one device"),
        (
            lambda: torch.ops.coattend.slice_attention_backward(
                torch.ones(2, 3, 4, 2, 1), torch.ones(2, 24, 2, 2), torch.ones(6, 4, 4), ROWS, 8
            ),
            r"gradient \(2, 3, 4, 2, 2\)",
        ),
        (lambda: torch.ops.coattend.max_pool_backward(torch.ones(3), torch.ones(1, 1, 4, 4)), r"\(1, 1, 2, 2\)"),
        (
            lambda: torch.ops.coattend.convolution_backward(
                torch.ones(1, 2, 1, 1), torch.ones(1, 1, 1, 1), torch.ones(2, 1, 1, 1, device="meta"), 1, 0, 1, 1
            ),
            "one device",
        ),
    ],
)
def test_refuses_what_it_would_read_beyond(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_gradients_of_another_type_are_converted() -> None:
    x, matrix, up = example(4, (3, 5))
    torch.testing.assert_close(BACKWARD(up.float(), x, matrix), BACKWARD(up.float().double(), x, matrix))
    maps = torch.randn(1, 1, 4, 4)
    pooled = torch.ops.coattend.max_pool_backward
    assert torch.equal(pooled(torch.ones(1, 1, 2, 2).half(), maps), pooled(torch.ones(1, 1, 2, 2), maps))


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    x, matrix, up = (t.float() for t in example(4, (9, 9), channels=7))
    alone = gradients(OPERATOR, x, matrix, up)
    torch.set_num_threads(3)
    try:
        assert all(torch.equal(a, b) for a, b in zip(alone, gradients(OPERATOR, x, matrix, up), strict=True))
    finally:
        torch.set_num_threads(1)


def test_gradients_of_large_groups_fit_on_a_small_stack() -> None:
    code = """
import torch, coattend.functional
assert coattend.functional.build_kernels()
torch.set_num_threads(2)
for scale in (1.0, 1e7):
    for dtype in (torch.float32, torch.float64):
        x = (scale * torch.randn(2, 2, 64, 3, 3, dtype=dtype)).requires_grad_()
        torch.ops.coattend.co_attention(x, torch.randn(2, 64, 64, dtype=dtype, requires_grad=True)).sum().backward()
"""
    environment = {**os.environ, "OMP_STACKSIZE": "64k"}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0


def test_only_the_inputs_are_saved() -> None:
    x, matrix, _ = example(4, (9, 9))
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = OPERATOR(x.requires_grad_(), matrix.requires_grad_())
    assert {t.data_ptr() for t in saved} == {x.data_ptr(), matrix.data_ptr()}
    torch.relu_(y).sum().backward()  # a layer behind it may work in place
    assert x.grad is not None


def test_torch_finds_nothing_wrong_with_the_operators() -> None:
    x, matrix = torch.randn(2, 3, 4, 5, 5, requires_grad=True), torch.randn(3, 4, 4, requires_grad=True)
    torch.library.opcheck(OPERATOR, (x, matrix))
    torch.library.opcheck(torch.ops.coattend.co_attention_backward, (x.detach(), x.detach(), matrix.detach()))
    rows = ca.nn.SliceCoAttentiveConv2d(1, 2, 1, "p4").rows
    planes, matrices = torch.randn(2, 32, 5, 5, requires_grad=True), torch.randn(8, 4, 4, requires_grad=True)
    torch.library.opcheck(torch.ops.coattend.slice_attention, (planes, matrices, rows, 4))
    weight, bias = torch.randn(8, 12, 3, 3, requires_grad=True), torch.randn(8, requires_grad=True)
    image, filters = torch.randn(2, 1, 5, 5), torch.randn(8, 1, 3, 3, requires_grad=True)
    for arguments in (
        (x, weight, bias, 2, 1, 1, 1, 4),
        (image, filters, bias, 1, 1, 1, 1, 4),
        (image.clone().requires_grad_(), filters, bias, 1, 1, 1, 1, 4),
        (x, weight.detach()[:, :6].clone().requires_grad_(), None, 1, 0, 1, 2, None),
    ):
        torch.library.opcheck(torch.ops.coattend.convolution, arguments)
        assert torch.autograd.gradcheck(torch.ops.coattend.convolution, arguments)


def test_gradients_of_a_convolution_whose_image_needs_none() -> None:
    image, weight, up = torch.randn(2, 3, 7, 6), torch.randn(8, 3, 3, 3), torch.randn(2, 2, 4, 5, 4)
    backward = torch.ops.coattend.convolution_backward
    expected = backward(up, image, weight, 1, 0, 1, 1)
    without, *of_filters = backward(up, image, weight, 1, 0, 1, 1, False)
    assert expected[0].shape == image.shape
    assert without.shape == (0,)
    for actual, other in zip(of_filters, expected[1:], strict=True):
        torch.testing.assert_close(actual, other)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch itself, when jvp is first used
def test_functional_transforms_use_the_formula() -> None:
    G, x, a = ca.cyclic(4), torch.randn(5, 2, 3, 4, 4, 4), torch.randn(3, 4)
    mapped = torch.func.vmap(lambda x: co_attention(x, a, G))(x)
    torch.testing.assert_close(mapped, torch.stack([co_attention(part, a, G) for part in x]))
    _, tangent = torch.func.jvp(lambda a: co_attention(x[0], a, G), (a,), (torch.ones_like(a),))
    assert tangent.shape == x[0].shape
