"""The kernels of gates and of pose self-attention against their formulas: values, gradients, ties, layouts, dtypes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import coattend as ca
from coattend.functional import gates
from coattend.functional._kernels import cpu
from coattend.functional.gates import GateBanks, apply_gates, mask_formula
from coattend.functional.pose_self_attention import attend_rows_formula

OPERATORS = torch.ops.coattend


def gate_inputs(name: str, groups: int = 1, size: int = 5) -> list[Tensor]:
    G = ca.get_group(name)
    layer = ca.nn.GroupGate2d(4, G, kernel_size=3, groups=groups)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(3, 4, G.order, size, size)
    return [x, *(bank.detach() for bank in (*layer.channel.banks(), layer.spatial.filters()))]


def formula(x: Tensor, *banks: Tensor) -> Tensor:
    return x * mask_formula(x, GateBanks(*banks))


def gradients(y: Tensor, tensors: list[Tensor], up: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(y, tensors, up)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("name", ["C1", "C2", "C4", "D4", "C16", "C3"])
def test_gates_are_those_of_the_formula(name: str, groups: int) -> None:
    assert cpu.library() is not None
    tensors = [t.requires_grad_() for t in gate_inputs(name, groups)]
    x = tensors[0]
    with torch.no_grad():
        x[0] = x[0].round()  # equal maxima over positions and over channels
        x[1] = 1.0
    y = apply_gates(x, GateBanks(*tensors[1:]))
    expected = formula(*tensors)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-13)
    up = torch.randn_like(y)
    for ours, theirs in zip(gradients(y, tensors, up), gradients(expected, tensors, up), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("k", [1, 3, 5, 7, 9, 13])
@pytest.mark.parametrize("channels", [1, 3, 9])
def test_gates_of_images_are_those_of_the_formula(channels: int, k: int) -> None:
    layer = ca.nn.LiftingGate2d(channels, "p4m", kernel_size=k)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(19, channels, 9, 13)  # more images than chunks
    # Equal maxima. Rounded images would have patches with mirror images, to which turned filters respond equally or not
    # as the order of summation has it.
    x[0, :, 0, 3] = x[0, :, 5, 12] = 9
    x[1] = 0  # all turned filters respond equally
    tensors = [x.requires_grad_(), *layer.parameters()]
    y, expected, up = layer(x), layer.mask(x) * x, torch.randn_like(x)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-13)
    for ours, theirs in zip(gradients(y, tensors, up), gradients(expected, tensors, up), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)


def test_images_that_are_gated_at_once_do_not_mix() -> None:
    x, *banks = gate_inputs("D4")
    many = x.repeat(7, 1, 1, 1, 1).requires_grad_()  # a multiple of no vector's length
    with torch.no_grad():
        many[4, 0, 0, 0, 0] = torch.nan
    y = apply_gates(many, GateBanks(*banks))
    up = torch.randn_like(x).repeat(7, 1, 1, 1, 1)
    (grad,) = torch.autograd.grad(y, many, up)
    assert y[4].isnan().any()
    others = [i for i in range(len(many)) if i != 4]
    for of_many in (y, grad):
        assert of_many[others].isfinite().all()
        assert torch.equal(of_many[:3], of_many[6:9])
    torch.testing.assert_close(y[:3], apply_gates(x, GateBanks(*banks)), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gates_in_narrow_types(dtype: torch.dtype) -> None:
    tensors = gate_inputs("D4")
    narrow = [t.to(dtype).requires_grad_() for t in tensors]
    y = apply_gates(narrow[0], GateBanks(*narrow[1:]))
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), formula(*(t.double() for t in narrow)), rtol=0.02, atol=0.02)
    y.sum().backward()
    assert [t.grad.dtype for t in narrow] == [dtype] * 4


def test_gates_read_channels_last_maps_without_a_copy_and_write_them() -> None:
    x, *banks = gate_inputs("C4")
    by_position = x.permute(0, 3, 4, 1, 2).contiguous().permute(0, 3, 4, 1, 2)
    y = apply_gates(by_position, GateBanks(*banks))
    assert y.permute(0, 3, 4, 1, 2).is_contiguous()
    assert torch.equal(y, apply_gates(x, GateBanks(*banks)))


def test_gates_and_their_gradients_have_gradients() -> None:
    tensors = [t.requires_grad_() for t in gate_inputs("C2", size=2)]
    assert torch.autograd.gradgradcheck(lambda *t: OPERATORS.group_gate(*t)[0], tensors, atol=1e-4)


def test_operators_keep_the_promises_of_torch() -> None:
    torch.library.opcheck(OPERATORS.group_gate.default, [t.requires_grad_() for t in gate_inputs("C4")])
    rows, bias = torch.randn(6, 3, 2, 3, 4, requires_grad=True), torch.randn(2, 4, 4, requires_grad=True)
    torch.library.opcheck(OPERATORS.pose_self_attention.default, (rows, bias))


@pytest.mark.parametrize("order", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("positions", [1, 300])
def test_pose_attention_is_that_of_the_formula(order: int, positions: int) -> None:
    tensors = [torch.randn(positions, 3, 2, 3, order), torch.randn(2, order, order)]
    tensors = [t.requires_grad_() for t in tensors]
    y, _ = OPERATORS.pose_self_attention(*tensors)
    expected = attend_rows_formula(*tensors)
    torch.testing.assert_close(y, expected, rtol=1e-11, atol=1e-12)
    up = torch.randn_like(y)
    for ours, theirs in zip(gradients(y, tensors, up), gradients(expected, tensors, up), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def test_pose_attention_has_second_gradients_and_narrow_types() -> None:
    rows, bias = torch.randn(2, 3, 1, 2, 2, requires_grad=True), torch.randn(1, 2, 2, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda *t: OPERATORS.pose_self_attention(*t)[0], (rows, bias))
    narrow = rows.detach().bfloat16()
    y, _ = OPERATORS.pose_self_attention(narrow, bias.bfloat16())
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.double(), attend_rows_formula(narrow.double(), bias), rtol=0.03, atol=0.03)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    x, *banks = gate_inputs("C4")
    rows, bias = torch.randn(600, 3, 2, 3, 4, requires_grad=True), torch.randn(2, 4, 4, requires_grad=True)
    results = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        y, _ = OPERATORS.pose_self_attention(rows, bias)
        results.append((apply_gates(x, GateBanks(*banks)), *gradients(y, [rows, bias], torch.ones_like(y))))
    torch.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_wrong_tensors_are_refused() -> None:
    x, squeeze, excite, spatial = gate_inputs("C4")
    with pytest.raises(ValueError, match="group_gate expects the banks of a gate for x"):
        OPERATORS.group_gate(x, squeeze, excite, spatial[:, :4])
    with pytest.raises(ValueError, match=r"pose_self_attention expects rows .* and a bias \(2, 4, 4\)"):
        OPERATORS.pose_self_attention(torch.randn(6, 3, 2, 3, 4), torch.randn(1, 4, 4))


def test_without_kernels_results_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [t.requires_grad_() for t in gate_inputs("C4")]
    rows, bias = torch.randn(6, 3, 2, 3, 4, requires_grad=True), torch.randn(2, 4, 4, requires_grad=True)
    results = []
    for _ in range(2):
        y, z = gates.apply_gates(tensors[0], GateBanks(*tensors[1:])), OPERATORS.pose_self_attention(rows, bias)[0]
        found = gradients(y, tensors, torch.ones_like(y)) + gradients(z, [rows, bias], torch.ones_like(z))
        results.append((y, z, *found))
        monkeypatch.setattr(cpu, "library", lambda: None)
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
