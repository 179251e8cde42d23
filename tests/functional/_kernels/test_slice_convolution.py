"""The convolution that attends to all slices in the cache: against loops and float64, and when it is chosen."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import coattend as ca
from coattend.functional import convolution, memory_format
from coattend.functional._kernels import cpu
from coattend.functional.layout import channels_last, is_channels_last
from coattend.groups import transform_map
from tests import oracles

OPERATORS = torch.ops.coattend


def layer(group: str = "p4", outputs: int = 2, **options: Any) -> ca.nn.SliceCoAttentiveConv2d:
    made = ca.nn.SliceCoAttentiveConv2d(2, outputs, 3, group, **options)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    return made


def arguments(conv: ca.nn.SliceCoAttentiveConv2d, x: Tensor) -> tuple[Tensor, Tensor, Tensor, list[int], int]:
    return x, conv.filters().detach(), conv.attention.matrix().detach(), conv.rows, 1


@pytest.fixture
def decisions(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each convolution was found to stay in the cache."""
    seen: list[bool] = []
    decide = convolution.slices_stay_in_cache

    def noted(*arguments: Any) -> bool:
        seen.append(decide(*arguments))
        return seen[-1]

    monkeypatch.setattr(convolution, "slices_stay_in_cache", noted)
    return seen


@pytest.mark.parametrize("group", ["C2", "C4", "D1", "D2", "D4"])
def test_the_kernel_equals_loops_from_the_definition(group: str, decisions: list[bool]) -> None:
    assert cpu.library() is not None
    conv = layer(group, outputs=4).float()
    G = conv.group
    x = torch.randn(1, 2, G.order, 5, 4, dtype=torch.float32)
    with memory_format("channels_last"), torch.no_grad():
        y = conv(x)
    assert decisions == [True]
    assert is_channels_last(y)
    weight, bias, attention = (p.detach().double().numpy() for p in (conv.weight, conv.bias, conv.attention.weight))
    tables = G.product, G.inverse, G.planar
    expected = oracles.slice_conv(x.double().numpy(), weight, bias, attention.reshape(4, G.order, -1), *tables)
    torch.testing.assert_close(y.double(), torch.tensor(expected), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("group", ["C2", "C4", "D4"])
def test_gradients_are_those_in_double_precision(group: str, decisions: list[bool]) -> None:
    conv = layer(group, outputs=8, padding=1).float()
    exact = copy.deepcopy(conv).double()
    x = torch.randn(9, 2, conv.group.order, 11, 6, dtype=torch.float32, requires_grad=True)
    wide = x.detach().double().requires_grad_()
    with memory_format("channels_last"):
        y = conv(x)
    expected, up = exact(wide), torch.randn(y.shape)
    assert decisions == [True, False]  # none in float64
    ours = torch.autograd.grad(y, [x, *conv.parameters()], up.float())
    theirs = torch.autograd.grad(expected, [wide, *exact.parameters()], up)
    for mine, other in zip((y.detach(), *ours), (expected.detach(), *theirs), strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=1e-5, atol=2e-6 * float(other.abs().max()))


def test_turning_the_input_turns_the_result() -> None:
    conv, G = layer("D4", outputs=3, padding=1).float(), ca.get_group("D4")
    x = torch.randn(2, 2, 8, 9, 9, dtype=torch.float32)
    with memory_format("channels_last"), torch.no_grad():
        for g in G.elements:
            y, turned = transform_map(conv(x), G, g), conv(transform_map(x, G, g))
            torch.testing.assert_close(turned, y, rtol=1e-5, atol=1e-5)


def test_when_it_is_chosen(decisions: list[bool]) -> None:
    x = torch.randn(8, 2, 4, 6, 6, dtype=torch.float32)
    with memory_format("channels_last"):
        layer().float()(x)
        layer(stride=2).float()(x)
        layer(outputs=3).float()(x)  # 12 columns, which no vectors of eight fill
        layer(padding=1, padding_mode="circular").float()(x)
        layer(outputs=4, relative=[0, 1]).float()(x)
        layer().bfloat16()(x.bfloat16())
        with torch.autocast("cpu", torch.bfloat16):
            layer().float()(x)
        layer().float()(x[:7])  # one image for each thread: too few
    with memory_format("planes"):
        layer().float()(x)
    in_bfloat16 = [cpu.STATE.multiplies_bfloat16] * 2
    assert decisions == [True] + [False] * 4 + in_bfloat16 + [False] * 2


@pytest.mark.skipif(not cpu.build_library() or not cpu.STATE.multiplies_bfloat16, reason="no products of bfloat16")
@pytest.mark.parametrize("autocasts", [True, False])
def test_layers_in_bfloat16(autocasts: bool, decisions: list[bool]) -> None:
    conv = layer(outputs=4, padding=1).float()
    for parameter in conv.parameters():
        parameter.data = parameter.data.bfloat16().float()
    x = torch.randn(9, 2, 4, 7, 6).bfloat16()
    expected = copy.deepcopy(conv).double()(x.double())
    given = x.float() if autocasts else x
    net = conv if autocasts else conv.bfloat16()
    with memory_format("channels_last"), torch.autocast("cpu", torch.bfloat16, enabled=autocasts):
        y = net(given.requires_grad_())
    assert decisions == [False, True]  # none in float64
    assert y.dtype == torch.bfloat16
    exact = expected.detach()
    torch.testing.assert_close(y.double(), exact, rtol=0, atol=0.01 * float(exact.abs().max()))
    for tensor, gradient in zip(
        [given, *net.parameters()], torch.autograd.grad(y.sum(), [given, *net.parameters()]), strict=True
    ):
        assert gradient.dtype == tensor.dtype
        assert gradient.isfinite().all()


def test_second_gradients() -> None:
    conv = layer()
    tensors = [t.requires_grad_() for t in arguments(conv, torch.randn(1, 2, 4, 2, 3))[:3]]

    def convolve(*tensors: Tensor) -> Tensor:
        return OPERATORS.slice_convolution(*tensors, conv.rows, 1)

    assert torch.autograd.gradcheck(convolve, tensors)
    assert torch.autograd.gradgradcheck(convolve, tensors)


def test_the_kernels_gradients_are_differentiated_by_the_formula() -> None:
    conv = layer().float()
    x = channels_last(torch.randn(2, 2, 4, 5, 5, dtype=torch.float32)).requires_grad_()
    wide = x.detach().double().requires_grad_()
    found = []
    for given, net in ((x, conv), (wide, copy.deepcopy(conv).double())):
        y = OPERATORS.slice_convolution(*arguments(net, given))
        (slope,) = torch.autograd.grad(y.square().sum(), given, create_graph=True)
        (curve,) = torch.autograd.grad(slope.square().sum(), given)
        found.append(curve.double())
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5 * float(found[1].abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_do_not_depend_on_the_number_of_threads(dtype: torch.dtype) -> None:
    conv = layer(outputs=4).float()
    x = channels_last(torch.randn(70, 2, 4, 9, 8).to(dtype)).requires_grad_()
    given, results = [t.requires_grad_() for t in arguments(conv, x)[:3]], []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        y = OPERATORS.slice_convolution(*given, conv.rows, 1)
        results.append((y, *torch.autograd.grad(y, given, torch.ones_like(y))))
    torch.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_it_saves_its_inputs_only() -> None:
    conv = layer(outputs=4).float()
    x = channels_last(torch.randn(8, 2, 4, 9, 9, dtype=torch.float32)).requires_grad_()
    given, saved = arguments(conv, x), list[Tensor]()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        OPERATORS.slice_convolution(*given)
    assert sum(t.numel() for t in saved) == sum(t.numel() for t in given[:3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_keeps_the_promises_of_torch(dtype: torch.dtype) -> None:
    conv = layer().to(dtype)
    for x in (torch.randn(2, 2, 4, 3, 4, dtype=dtype), channels_last(torch.randn(2, 2, 4, 3, 4, dtype=dtype))):
        torch.library.opcheck(OPERATORS.slice_convolution.default, arguments(conv, x.requires_grad_()))


def test_wrong_tensors_are_refused() -> None:
    x, bank, matrix, rows, padding = arguments(layer(), torch.randn(1, 2, 4, 3, 3))
    for wrong in (
        (x[:, :1], bank, matrix, rows, padding),
        (x[:, :, :2], bank, matrix, rows, padding),
        (x, bank[:4], matrix, rows, padding),
        (x, bank, matrix[:4], rows, padding),
        (x, bank, matrix, rows[:4], padding),
        (x, bank, matrix, rows, -1),
        (x[..., :2], bank, matrix, rows, 0),
    ):
        with pytest.raises(ValueError, match="slice_convolution expects x .* pass those of a SliceCoAttentiveConv2d"):
            OPERATORS.slice_convolution(*wrong)
    with pytest.raises(ValueError, match="slice_convolution expects channel"):
        OPERATORS.slice_convolution(x, bank, matrix, [99] * 16, padding)
