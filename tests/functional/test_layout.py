"""Maps in channels-last memory format: the same numbers as planes one after another."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import coattend as ca
from coattend.functional import dropout, max_pool_2x2, memory_format
from coattend.functional.attention import attend, attend_slices
from coattend.functional.layout import channels_last, empty_like, folded, in_format_of, is_channels_last
from coattend.functional.tables import slice_tables
from coattend.groups import FiniteGroup, cyclic, dihedral

GROUPS = [cyclic(1), cyclic(2), cyclic(3), cyclic(4), cyclic(6), cyclic(8), dihedral(2), dihedral(4), cyclic(16)]


@pytest.fixture(autouse=True)
def float32() -> None:
    torch.set_default_dtype(torch.float32)


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": 2e-5, "atol": 2e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}


def gradients(function: Callable[..., Tensor], *tensors: Tensor) -> list[Tensor]:
    """Return the result of a function and the gradients of a fixed weighting of it, in float64."""
    inputs = [t.detach().requires_grad_() for t in tensors]
    y = function(*inputs)
    torch.manual_seed(7)
    weights = torch.randn(y.shape, dtype=torch.float64).to(y.dtype)
    return [t.double() for t in (y, *torch.autograd.grad((y * weights).sum(), inputs))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("group", GROUPS, ids=lambda g: g.name)
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_attention_of_channels_last_maps(group: FiniteGroup, channels: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, channels, group.order, 5, 3, dtype=torch.float64).to(dtype)
    matrix = torch.randn(channels, group.order, group.order)
    expected = gradients(attend, x.double(), matrix.double())
    result = gradients(attend, channels_last(x), matrix)
    assert is_channels_last(attend(channels_last(x), matrix))
    for ours, theirs in zip(result, expected, strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("relative", ["all", "some"])
@pytest.mark.parametrize("group", GROUPS[1:], ids=lambda g: g.name)
def test_slices_of_channels_last_maps(group: FiniteGroup, relative: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    channels, poses = 3, tuple(group.elements) if relative == "all" else (0, group.order - 1)
    rows = slice_tables(group, 3, poses, channels, "free").rows
    planes = torch.randn(2, channels * len(rows), 3, 5, dtype=torch.float64).to(dtype)
    matrix = torch.randn(channels * len(poses), group.order, group.order)
    expected = gradients(lambda p, m: attend_slices(p, m, rows, len(poses)), planes.double(), matrix.double())
    result = gradients(lambda p, m: attend_slices(p, m, rows, len(poses)), channels_last(planes), matrix)
    for ours, theirs in zip(result, expected, strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("order", [1, 3, 4])
def test_pooling_of_channels_last_maps(order: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randint(-3, 3, (2, 3, order, 6, 4)).to(dtype)  # with ties
    expected, result = (gradients(max_pool_2x2, t) for t in (x.double(), channels_last(x)))
    for ours, theirs in zip(result, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0.01)
    assert is_channels_last(max_pool_2x2(channels_last(x)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_drops_the_same_in_either_format(dtype: torch.dtype) -> None:
    x = torch.randn(3, 5, 4, 7, 6).to(dtype)

    def dropped(x: Tensor) -> Tensor:
        torch.manual_seed(3)
        return dropout(x, 0.3, training=True)

    expected, result = gradients(dropped, x), gradients(dropped, channels_last(x))
    for ours, theirs in zip(result, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0 if dtype == torch.float32 else 1e-2, atol=0)
    assert torch.equal(result[0] == 0, expected[0] == 0)
    assert 0.2 < (result[0] == 0).double().mean() < 0.4


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan"), 3e4])
def test_extreme_numbers_follow_the_formula(value: float) -> None:
    torch.manual_seed(0)
    x, matrix = torch.randn(1, 3, 4, 9, 5), torch.randn(3, 4, 4)
    x[0, 1, 2, 3, 4] = value
    expected, result = gradients(attend, x.double(), matrix.double()), gradients(attend, channels_last(x), matrix)
    for ours, theirs in zip(result, expected, strict=True):
        assert torch.equal(ours.isnan(), theirs.isnan())
        torch.testing.assert_close(ours.nan_to_num(), theirs.float().double().nan_to_num(), rtol=1e-3, atol=1e-3)


def test_results_do_not_depend_on_threads() -> None:
    torch.manual_seed(0)
    x, matrix = channels_last(torch.randn(16, 10, 4, 12, 12)), torch.randn(10, 4, 4)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(gradients(attend, x, matrix))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_inputs_of_any_strides_and_sizes() -> None:
    matrix = torch.randn(3, 4, 4)
    whole = channels_last(torch.randn(5, 6, 4, 8, 8))
    views = {
        "offset": whole[1:3, 3:, :, 2:5, 1:],
        "expanded": whole[:1, :3, :, :1].expand(4, -1, -1, 6, -1),
        "flipped strides": whole.transpose(3, 4)[:, ::2],
        "one position": channels_last(torch.randn(2, 3, 4, 1, 1)),
    }
    for view in views.values():
        torch.testing.assert_close(
            attend(view, matrix).double(), attend(view.double(), matrix.double()), rtol=1e-4, atol=1e-5
        )
    for shape in ((0, 3, 4, 5, 5), (2, 3, 4, 0, 5)):
        assert attend(channels_last(torch.randn(shape)), matrix).shape == shape
        assert max_pool_2x2(torch.randn(0, 3, 4, 6, 6)).shape == (0, 3, 4, 3, 3)


def test_formats() -> None:
    x = torch.randn(2, 3, 4, 5, 6)
    y = channels_last(x)
    assert y.stride() == (360, 4, 1, 72, 12)
    assert channels_last(y) is y
    assert is_channels_last(y)
    assert not is_channels_last(x)
    assert empty_like(y, (2, 1, 4, 2, 2)).stride() == (16, 4, 1, 8, 4)
    assert empty_like(x).is_contiguous()
    assert in_format_of(x, y).stride() == y.stride()
    assert folded(y).is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(folded(y.transpose(1, 2)), x.transpose(1, 2).flatten(1, 2))
    assert folded(y.transpose(1, 2)).is_contiguous(memory_format=torch.channels_last)


def test_convolutions_return_the_chosen_format() -> None:
    layer, image = ca.nn.LiftingConv2d(1, 3, 3, "p4"), torch.randn(2, 1, 8, 8)
    with memory_format("channels_last"):
        y = layer(image)
    assert is_channels_last(y)
    with memory_format("planes"):
        z = layer(image)
    assert z.is_contiguous()
    torch.testing.assert_close(y, z)
    users = image.clone(memory_format=torch.channels_last)
    assert is_channels_last(layer(users))
    with pytest.raises(ValueError, match="one of auto, planes, channels_last, got 'rows'"):  # noqa: SIM117
        with memory_format("rows"):  # type: ignore[arg-type]
            pass


@pytest.mark.parametrize("name", ["p4cnn", "a_p4cnn", "a_p4cnn:attention=output", "p4m_resnet44", "z2cnn"])
def test_networks_compute_the_same_in_either_format(name: str) -> None:
    torch.manual_seed(0)
    network = ca.create_model(name)
    entry_channels = network.in_channels
    x = torch.randn(2, entry_channels, *((28, 28) if entry_channels == 1 else (17, 17)))
    outputs = []
    for format_ in ("planes", "channels_last"):
        with memory_format(format_):  # type: ignore[arg-type]
            torch.manual_seed(1)
            copied = copy.deepcopy(network).train()
            trained = copied(x)
            outputs.append((trained.detach(), copied.eval()(x).detach()))
    for ours, theirs in zip(*outputs, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
