"""The C++ kernels at the edges of memory, against the formulas in float64.

Tensors end where their memory ends and begin one number after its start, rows are not multiples of a vector, and inputs
are expanded, transposed, strided or empty. ``python -m tools.sanitize`` runs these tests with kernels that a compiler's
sanitizers watch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor

from coattend.functional._kernels import cpu, rows
from coattend.functional._kernels.conv_attention import conv_attention, conv_statistics
from coattend.functional._kernels.slice_convolution import LANES
from coattend.functional.attention import attend_formula, attend_slices_formula, plane_index
from coattend.functional.dynamic import ContextNorm, filter_formula
from coattend.functional.gates import GateBanks, mask_formula
from coattend.functional.normalization import normalize_formula
from coattend.functional.pooling import max_pool_formula
from coattend.functional.pose_self_attention import attend_rows_formula

OPS = torch.ops.coattend
TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2e-2}
ORDERS = (1, 2, 3, 4, 6, 8, 16)


def planes(x: Tensor) -> Tensor:
    """The same numbers up to the end of their memory, the first one not at the start of a vector."""
    return x.new_zeros(x.numel() + 1)[1:].view(x.shape).copy_(x)


def channels_last(x: Tensor) -> Tensor:
    if x.ndim < 4:
        return planes(x)
    inner = planes(x.permute(0, x.ndim - 2, x.ndim - 1, *range(1, x.ndim - 2)))
    return inner.permute(0, *range(3, x.ndim), 1, 2)


def transposed(x: Tensor) -> Tensor:
    return planes(x.movedim(-1, 0)).movedim(0, -1)


def strided(x: Tensor) -> Tensor:
    return planes(x.repeat_interleave(2, -1))[..., ::2]


def expanded(x: Tensor) -> Tensor:
    return planes(x[:1]).expand_as(x)


Way = Callable[[Tensor], Tensor]
WAYS: tuple[Way, ...] = (planes, channels_last, transposed, strided, expanded)
EVERY_WAY = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
EVERY_TYPE = pytest.mark.parametrize("dtype", TOLERANCES, ids=str)


def check(
    operator: Callable[..., Tensor],
    formula: Callable[..., Tensor],
    tensors: Sequence[Tensor],
    way: Way,
    dtype: torch.dtype,
) -> None:
    """Compare values and gradients of an operator with those of the formula in float64."""
    leaves = [way(tensor.to(dtype)).requires_grad_() for tensor in tensors]
    y = operator(*leaves)
    up = way(torch.randn(y.shape).to(dtype))
    exact_leaves = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact = formula(*exact_leaves)
    ours = [y, *torch.autograd.grad(y, leaves, up)]
    theirs = [exact, *torch.autograd.grad(exact, exact_leaves, up.double(), materialize_grads=True)]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == dtype
        assert_near(mine.detach(), other.detach())


def assert_near(ours: Tensor, exact: Tensor) -> None:
    finite = exact[exact.isfinite()]
    scale = max(1.0, float(finite.abs().max())) if finite.numel() else 1.0
    torch.testing.assert_close(ours.double(), exact, rtol=0, atol=TOLERANCES[ours.dtype] * scale, equal_nan=True)


def by_input_pose(channels: int, order: int) -> tuple[list[int], int]:
    """The rows of a convolution with one slice for every pose of a cyclic group, and the step between channels."""
    poses = range(order)
    return [(g - t) % order * channels * order + t for t in poses for g in poses], order


def by_channel(slices: int, order: int) -> tuple[list[int], int]:
    return list(range(slices * order)), slices * order


def check_slices(planes: Tensor, matrix: Tensor, order: tuple[list[int], int], way: Way, dtype: torch.dtype) -> None:
    rows, step = order
    index, slices = plane_index(planes, rows, step), len(rows) // matrix.shape[-1]
    ours = partial(OPS.slice_attention, rows=rows, channel_step=step)
    check(ours, partial(attend_slices_formula, index=index, slices=slices), (planes, matrix), way, dtype)


def test_the_kernels_are_what_is_tested_here() -> None:
    assert cpu.library() is not None, "no C++ compiler: these tests compare the formulas with themselves"


@EVERY_TYPE
@EVERY_WAY
def test_co_attention(way: Way, dtype: torch.dtype) -> None:
    for order in ORDERS:
        for channels, height, width in ((1, 1, 1), (3, 3, 5), (5, 1, 9)):
            x, matrix = torch.randn(2, channels, order, height, width), torch.randn(channels, order, order)
            check(OPS.co_attention, attend_formula, (x, matrix), way, dtype)


@EVERY_TYPE
@EVERY_WAY
def test_slice_attention(way: Way, dtype: torch.dtype) -> None:
    for order in ORDERS:
        channels = 3 if order < 16 else 1
        x, matrix = torch.randn(2, channels * order**2, 3, 3), torch.randn(channels * order, order, order)
        check_slices(x, matrix, by_input_pose(channels, order), way, dtype)
        x, matrix = torch.randn(2, channels * 2 * order, 3, 3), torch.randn(channels * 2, order, order)
        check_slices(x, matrix, by_channel(2, order), way, dtype)


def slice_formula(x: Tensor, bank: Tensor, matrix: Tensor, rows: list[int], padding: int) -> Tensor:
    order = x.shape[2]
    planes = torch.conv2d(x.transpose(1, 2).flatten(1, 2), bank, padding=padding, groups=order)
    return attend_slices_formula(planes, matrix, plane_index(planes, rows, order), order)


SLICE_SHAPES = (  # images, channels in and out, kernel, padding, height, width
    (2, 2, 4, 3, 0, 3, 3),
    (7, 3, 8, 3, 1, 5, 4),  # several images in a tile, and fewer in the last
    (2, 1, 40, 1, 0, 40, 7),  # several tiles in an image
    (1, 11, 48, 2, 2, 23, 17),  # whose lines overlap; more channels than registers hold at once
    (1, 2, 4, 5, 4, 2, 1),
    (1, 3, 40, 7, 3, 19, 9),  # lines of three tiles
)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)  # rounded responses have other maxima
@EVERY_WAY
def test_slice_convolution(way: Way, dtype: torch.dtype) -> None:
    for order in ORDERS[:-1]:
        for batch, channels, outputs, k, padding, height, width in SLICE_SHAPES:
            out = max(1, outputs // order)
            x, bank = torch.randn(batch, channels, order, height, width), torch.randn(order**2 * out, channels, k, k)
            given, (rows, _) = (x, bank, torch.randn(order * out, order, order)), by_input_pose(out, order)
            ours = partial(OPS.slice_convolution, rows=rows, padding=padding)
            check(ours, partial(slice_formula, rows=rows, padding=padding), given, way, dtype)


@EVERY_WAY
def test_slice_convolution_of_maps_in_bfloat16(way: Way) -> None:
    for order in (2, 4, 8):
        for batch, channels, outputs, k, padding, height, width in SLICE_SHAPES:
            if outputs % LANES:
                continue  # there is no kernel
            (rows, _), out = by_input_pose(outputs // order, order), outputs // order
            x, bank = torch.randn(batch, channels, order, height, width), torch.randn(order * outputs, channels, k, k)
            bank, matrix = bank.bfloat16().float(), torch.randn(order * out, order, order, dtype=torch.float32)
            leaves = [way(tensor).requires_grad_() for tensor in (x.bfloat16(), bank, matrix)]
            y = OPS.slice_convolution(*leaves, rows, padding)
            up = way(torch.randn(y.shape).bfloat16())
            ours = y.detach(), *torch.autograd.grad(y, leaves, up)

            # The responses are float32; their gradients are rounded, as those of a map between two layers.
            wide, filters, matrices = (leaf.detach().double().requires_grad_() for leaf in leaves)
            planes = torch.conv2d(wide.transpose(1, 2).flatten(1, 2), filters, padding=padding, groups=order)
            exact = attend_slices_formula(planes, matrices, plane_index(planes, rows, order), order)
            of_planes, of_matrices = torch.autograd.grad(exact, [planes, matrices], up.double(), retain_graph=True)
            others = torch.autograd.grad(planes, [wide, filters], of_planes.bfloat16().double())
            for mine, other in zip(ours, (exact.detach(), *others, of_matrices), strict=True):
                scale = max(1.0, float(other.abs().max()))
                tolerance = 1e-3 if mine.dtype == torch.float32 else 5e-3
                torch.testing.assert_close(mine.double(), other, rtol=0, atol=tolerance * scale)
            assert [tensor.dtype for tensor in ours] == [torch.bfloat16] * 2 + [torch.float32] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@EVERY_WAY
def test_conv_attention(way: Way, dtype: torch.dtype) -> None:
    shapes = ((2, 2, 8, 3, 0, 3, 3), (7, 3, 24, 3, 1, 5, 4), (2, 1, 40, 1, 0, 40, 7), (1, 11, 48, 2, 2, 23, 17))
    for order in (2, 4, 8):
        for batch, channels, columns, k, padding, height, width in shapes:
            out, relu = columns // order, bool(k % 2)
            image, bank = torch.randn(batch, channels, height, width), torch.randn(columns, channels, k, k)
            vectors = torch.randn(columns), torch.rand(out), torch.randn(out), torch.randn(out), torch.rand(out)
            others = bank.to(dtype), *vectors, torch.randn(out, order, order)
            tensors = [way(image.to(dtype)), *(way(t.float()) for t in others)]
            x, bank, conv_bias, weight, bias, mean, variance, matrix = tensors
            norm = weight, bias, (mean, variance), 1e-5
            ours = conv_attention(x, bank, conv_bias, padding, matrix, *norm, relu)
            x, bank, conv_bias, weight, bias, mean, variance, matrix = (tensor.double() for tensor in tensors)
            responses = torch.conv2d(x, bank, conv_bias, padding=padding).unflatten(1, (out, order))
            exact, *_ = normalize_formula(responses, matrix, weight, bias, (mean, variance), 1e-5, relu)
            assert_near(ours, exact)
            y, z, *statistics = conv_statistics(*tensors[:3], padding, tensors[-1])
            assert [t.dtype for t in (ours, y, z, *statistics)] == [dtype] * 3 + [torch.float32] * 2
            attended = attend_formula(responses if dtype == torch.float32 else y.double(), matrix)
            expected = attended.mean((0, 2, 3, 4)), attended.var((0, 2, 3, 4), correction=0)
            for mine, other in zip((y, z, *statistics), (responses, attended, *expected), strict=True):
                scale = max(1.0, float(other.abs().max()))
                torch.testing.assert_close(mine.double(), other, rtol=0, atol=TOLERANCES[dtype] * scale)


@EVERY_TYPE
@EVERY_WAY
def test_max_pool(way: Way, dtype: torch.dtype) -> None:
    for shape in ((2, 3, 4, 2, 2), (1, 5, 1, 4, 6), (2, 9, 2, 18)):
        check(OPS.max_pool, max_pool_formula, (torch.randn(shape),), way, dtype)


@pytest.mark.parametrize("training", [True, False])
@EVERY_TYPE
@EVERY_WAY
def test_normalize(way: Way, dtype: torch.dtype, training: bool) -> None:
    for order in ORDERS:
        for channels, attends, relu in ((3, True, True), (5, True, False), (5, False, True)):
            x, matrix = torch.randn(2, channels, order, 3, 3), torch.randn(channels, order, order)
            # Far from 0 on either side, where rounding cannot decide on the gradient of the ReLU.
            weight, bias = 0.1 * torch.rand(channels), 2 * (torch.arange(channels) % 2 - 0.5)
            statistics = (
                None if training else (way(torch.rand(channels).to(dtype)), way(torch.rand(channels).to(dtype)))
            )

            def ours(x: Tensor, weight: Tensor, bias: Tensor, *matrix: Tensor) -> Tensor:
                given = (None, None) if statistics is None else statistics  # noqa: B023
                return OPS.normalize(x, *(matrix or (None,)), weight, bias, *given, 1e-5, relu)[0]  # noqa: B023

            def formula(x: Tensor, weight: Tensor, bias: Tensor, *matrix: Tensor) -> Tensor:
                given = None if statistics is None else (statistics[0].double(), statistics[1].double())  # noqa: B023
                return normalize_formula(x, *(matrix or (None,)), weight, bias, given, 1e-5, relu)[0]  # noqa: B023

            check(ours, formula, (x, weight, bias, *((matrix,) if attends else ())), way, dtype)


@EVERY_TYPE
@EVERY_WAY
def test_drop(way: Way, dtype: torch.dtype) -> None:
    for shape in ((2, 3, 4, 3, 3), (1, 5, 1, 1, 33), (2, 7, 5, 7)):
        draws = torch.randint(-(2**15), 2**15, (torch.Size(shape).numel(),), dtype=torch.int16)
        for given in (planes(draws), strided(draws)):
            kept = (draws.view(shape) >= 100).double()
            check(
                lambda x: OPS.drop(x, given, 100, 1.25)[0],  # noqa: B023
                lambda x: x * kept * 1.25,  # noqa: B023
                (torch.randn(shape),),
                way,
                dtype,
            )


@EVERY_TYPE
@EVERY_WAY
def test_filter_positions(way: Way, dtype: torch.dtype) -> None:
    for order in ORDERS:
        for channels, slices, hidden, k, size in ((3, 1, 2, 3, (2, 5)), (6, 2, 5, 1, (1, 1)), (2, 2, 1, 5, (5, 4))):
            v, z = torch.randn(2, channels, order, *size), torch.randn(2, hidden, order, *size)
            bank = torch.randn(hidden + 1, slices, k * k, order)
            check(OPS.filter_positions, filter_formula, (v, z, bank), way, dtype)
            if z[0, 0].numel() > 1:
                check(
                    OPS.filter_positions,
                    lambda v, z, bank, *norm: filter_formula(v, z, bank, ContextNorm(*norm, 1e-5)),
                    (v, z, bank, 1 + torch.rand(hidden), torch.rand(hidden)),
                    way,
                    dtype,
                )


@EVERY_TYPE
@EVERY_WAY
def test_constant_filters(way: Way, dtype: torch.dtype) -> None:
    for order in ORDERS:
        for channels, slices, k, size in ((3, 1, 3, (2, 5)), (6, 2, 1, (1, 1)), (2, 2, 7, (5, 4)), (5, 1, 9, (3, 1))):
            v, bank = torch.randn(2, channels, order, *size), torch.randn(1, slices, k * k, order)
            check(
                lambda v, bank: OPS.filter_positions(v, v.detach()[:, :0], bank),
                lambda v, bank: filter_formula(v, v[:, :0], bank),
                (v, bank),
                way,
                dtype,
            )


@EVERY_TYPE
@EVERY_WAY
def test_group_gate(way: Way, dtype: torch.dtype) -> None:
    turned = 1 if way is expanded else 3  # equal filters respond equally but for rounding, which decides the maximum
    for order in ORDERS:
        for channels, k, size, turns in ((1, 1, (1, 1), 1), (3, 3, (3, 5), 1), (11, 7, (2, 9), turned)):
            n = channels * order
            banks = (
                torch.randn(2 * order, n) / n,
                torch.randn(n, 2 * order) / n,
                torch.randn(turns * order, 2 * order, k, k) / n,
            )
            check(
                lambda *tensors: OPS.group_gate(*tensors)[0],
                lambda x, *banks: x * mask_formula(x, GateBanks(*banks)),
                (torch.randn(2, channels, order, *size), *banks),
                way,
                dtype,
            )


# Not in bfloat16, whose few values have two maxima that are equal but for rounding, among so many images.
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@EVERY_WAY
def test_gates_of_several_images_at_once(way: Way, dtype: torch.dtype) -> None:
    for order in ORDERS:
        n = 3 * order
        banks = torch.randn(order, n) / n, torch.randn(n, order) / n, torch.randn(order, 2 * order, 5, 5) / n
        check(
            lambda *tensors: OPS.group_gate(*tensors)[0],
            lambda x, *banks: x * mask_formula(x, GateBanks(*banks)),
            (torch.randn(17, 3, order, 2, 7), *banks),
            way,
            dtype,
        )


@EVERY_TYPE
@EVERY_WAY
@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "k"), [(1, 0, 1, 1), (1, 0, 1, 3), (2, 1, 1, 3), (1, 2, 2, 3), (3, 5, 1, 5)]
)
def test_image_gradient(stride: int, padding: int, dilation: int, k: int, way: Way, dtype: torch.dtype) -> None:
    geometry = stride, padding, dilation
    for planes_, size in ((1, (5, 5)), (11, (7, 22))):
        images, weight = torch.zeros(2, 1, *size), torch.randn(planes_, 1, k, k)
        shape = torch.conv2d(images, weight, None, *geometry).shape

        def formula(grad: Tensor, weight: Tensor, size: tuple[int, int] = size) -> Tensor:
            return torch.nn.grad.conv2d_input((len(grad), 1, *size), weight, grad, *geometry)

        def kernel(grad: Tensor, weight: Tensor, size: tuple[int, int] = size) -> Tensor:
            return OPS.image_gradient(grad, weight, *size, *geometry)

        check(kernel, formula, (torch.randn(shape), weight), way, dtype)


@EVERY_TYPE
@EVERY_WAY
@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "k"),
    [(1, 0, 1, 1), (1, 0, 1, 3), (2, 1, 1, 3), (1, 2, 2, 3), (3, 5, 1, 5), (1, 4, 1, 9), (1, 3, 1, 7), (2, 1, 2, 2)],
)
def test_image_filter_gradients(stride: int, padding: int, dilation: int, k: int, way: Way, dtype: torch.dtype) -> None:
    geometry = stride, padding, dilation
    for planes_, size in ((1, (5, 5)), (11, (7, 22)), (16, (5, 6)), (40, (6, 5))):
        images, weight = torch.randn(3, 1, *size), torch.zeros(planes_, 1, k, k)
        grad = torch.randn(torch.conv2d(images, weight, None, *geometry).shape)
        grad, images = way(grad.to(dtype)), way(images.to(dtype))
        ours = OPS.image_filter_gradients(grad, images, weight.to(dtype), *geometry)
        exact = torch.nn.grad.conv2d_weight(images.double(), weight.shape, grad.double(), *geometry)
        for mine, other in zip(ours, (exact, grad.double().sum((0, 2, 3))), strict=True):
            assert mine.dtype == dtype
            assert_near(mine, other)


@EVERY_TYPE
@EVERY_WAY
def test_pose_self_attention(way: Way, dtype: torch.dtype) -> None:
    for order in ORDERS:
        for positions, heads, width in ((1, 1, 1), (5, 2, 3), (259, 1, 2)):
            rows, bias = torch.randn(positions, 3, heads, width, order), torch.randn(heads, order, order)
            check(lambda *tensors: OPS.pose_self_attention(*tensors)[0], attend_rows_formula, (rows, bias), way, dtype)


@EVERY_TYPE
@pytest.mark.parametrize("way", [planes, channels_last], ids=lambda way: way.__name__)
@pytest.mark.parametrize(("batch", "channels", "height"), [(0, 3, 2), (2, 0, 2), (2, 3, 0)])
def test_nothing(batch: int, channels: int, height: int, way: Way, dtype: torch.dtype) -> None:
    order = 4
    x, matrix = torch.randn(batch, channels, order, height, 2), torch.randn(channels, order, order)
    check(OPS.co_attention, attend_formula, (x, matrix), way, dtype)
    if height:
        check(OPS.max_pool, max_pool_formula, (x,), way, dtype)
    if channels:
        check_slices(x.flatten(1, 2), matrix, by_channel(channels, order), way, dtype)
        z, bank = torch.randn(batch, 2, order, height, 2), torch.randn(3, 1, 9, order)
        check(OPS.filter_positions, filter_formula, (x, z, bank), way, dtype)
    rows, bias = torch.randn(batch * height, 3, channels, 2, order), torch.randn(channels, order, order)
    if rows.numel() == 0:
        check(lambda *t: OPS.pose_self_attention(*t)[0], attend_rows_formula, (rows, bias), way, dtype)
    draws = torch.zeros(x.numel(), dtype=torch.int16)
    check(lambda x: OPS.drop(x, draws, 0, 2.0)[0], lambda x: 2 * x, (x,), way, dtype)


@EVERY_TYPE
@pytest.mark.parametrize("way", [planes, channels_last], ids=lambda way: way.__name__)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite(value: float, way: Way, dtype: torch.dtype) -> None:
    for order in ORDERS:
        x, matrix = torch.randn(2, 3, order, 3, 5), torch.randn(3, order, order)
        x[1, 2, order // 2, 2, 4] = x[0, 0, 0, 0, 0] = value
        check(OPS.co_attention, attend_formula, (x, matrix), way, dtype)
        window = way(x[..., :2, :4].to(dtype)).requires_grad_()
        pooled = OPS.max_pool(window)
        assert_near(pooled.detach(), max_pool_formula(window.detach().double()))
        pooled.sum().backward()
        given = way(x.to(dtype)), way(matrix.to(dtype))
        normalized = OPS.normalize(*given, None, None, None, None, 1e-5, True)[0]
        exact = normalize_formula(*(t.double() for t in given), None, None, None, 1e-5, True)[0]
        assert_near(normalized, exact)
        planes, matrices = x[:, :, :, None].expand(-1, -1, -1, 2, -1, -1).flatten(1, 3), torch.randn(6, order, order)
        check_slices(planes, matrices, by_channel(2, order), way, dtype)
        if dtype != torch.bfloat16:
            given = x, torch.randn(order**2 * 2, 3, 1, 1), torch.randn(order * 2, order, order)
            rows, _ = by_input_pose(2, order)
            ours = partial(OPS.slice_convolution, rows=rows, padding=0)
            check(ours, partial(slice_formula, rows=rows, padding=0), given, way, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_several_chunks_and_threads(dtype: torch.dtype) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for order in (4, 6, 8):
            channels = 75 // order
            x, matrix = torch.randn(3, channels, order, 14, 14), torch.randn(channels, order, order)
            check(OPS.co_attention, attend_formula, (x, matrix), channels_last, dtype)
            x, matrix = torch.randn(3, 3 * order**2, 14, 14), torch.randn(3 * order, order, order)
            check_slices(x, matrix, by_input_pose(3, order), channels_last, dtype)
    finally:
        torch.set_num_threads(threads)


@EVERY_TYPE
@EVERY_WAY
def test_reorder(way: Way, dtype: torch.dtype) -> None:
    for number, height, width in ((1, 1, 1), (7, 3, 5), (24, 1, 2)):
        index = torch.randperm(number).tolist()
        ours, formula = partial(OPS.reorder, index=index), lambda x: x[:, index]  # noqa: B023
        check(ours, formula, (torch.randn(2, number, height, width),), way, dtype)


@pytest.mark.parametrize("value", [0.5, float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", rows.TYPES, ids=str)
def test_a_norm_that_overwrites_its_input(dtype: torch.dtype, value: float) -> None:
    for order in rows.VECTOR_ORDERS:
        x, matrix = torch.randn(2, 5, order, 3, 5), torch.randn(5, order, order)
        x[1, 2, order // 2, 2, 4] = value
        given, statistics = channels_last(x.to(dtype)), (torch.rand(5), torch.rand(5))
        exact = normalize_formula(given.double(), matrix, None, None, statistics, 1e-5, True)[0]
        y, _, _ = rows.norm_forward(given, matrix, None, None, statistics, 1e-5, True, in_place=True)
        assert y is given
        assert_near(y, exact)
