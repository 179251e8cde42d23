"""The maximum over 2x2 windows: against torch's own, with gradients that equal maxima share."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import coattend as ca
from coattend.functional import build_kernels, max_pool_2x2
from coattend.functional._kernels import cpu
from coattend.functional._kernels.pooling import max_pool
from coattend.groups import transform_map

SIZES = [(2, 2), (4, 10), (24, 24), (18, 34)]


@pytest.fixture(params=["kernel", "formula"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "formula":
        monkeypatch.setattr(cpu, "library", lambda: None)
    elif not build_kernels():
        pytest.skip("no C++ compiler")


def gradient(x: Tensor, up: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    (found,) = torch.autograd.grad(max_pool_2x2(x), x, up)
    return found


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", SIZES)
def test_equals_torch(size: tuple[int, int], dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 4, *size).to(dtype)
    y = max_pool_2x2(x)
    assert torch.equal(y, F.max_pool2d(x.flatten(1, 2), 2).unflatten(1, (3, 4)))
    distinct = torch.randperm(x.numel()).reshape(x.shape).to(torch.float64)
    up = torch.randn_like(distinct[..., ::2, ::2])
    theirs = distinct.clone().requires_grad_()
    F.max_pool2d(theirs.flatten(1, 2), 2).unflatten(1, (3, 4)).backward(up)
    assert torch.equal(gradient(distinct, up), theirs.grad)


@pytest.mark.usefixtures("either_way")
def test_equal_maxima_share_the_gradient() -> None:
    x = torch.tensor([[1.0, 1.0, 3.0, 0.0], [0.0, 1.0, 3.0, 3.0]])[None, None, None]
    up = torch.tensor([6.0, 12.0])[None, None, None, None]
    expected = torch.tensor([[2.0, 2.0, 4.0, 0.0], [0.0, 2.0, 4.0, 4.0]])
    assert torch.equal(gradient(x, up)[0, 0, 0], expected)


@pytest.mark.usefixtures("either_way")
def test_gradient_is_equivariant_where_that_of_torch_is_not() -> None:
    group = ca.dihedral(4)
    x, up = torch.randint(0, 2, (1, 2, 8, 6, 6)).to(torch.float64), torch.randn(1, 2, 8, 3, 3)

    def torch_gradient(x: Tensor, up: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        (found,) = torch.autograd.grad(F.max_pool2d(x.flatten(1, 2), 2).unflatten(1, (2, 8)), x, up)
        return found

    for g in range(1, 8):
        turned_x, turned_up = transform_map(x, group, g), transform_map(up, group, g)
        assert torch.equal(gradient(turned_x, turned_up), transform_map(gradient(x, up), group, g))
        assert not torch.equal(torch_gradient(turned_x, turned_up), transform_map(torch_gradient(x, up), group, g))


@pytest.mark.usefixtures("either_way")
def test_nan_passes() -> None:
    for place in range(4):
        x = torch.zeros(1, 1, 1, 2, 2)
        x.view(-1)[place] = torch.nan
        assert max_pool_2x2(x).isnan().all()


def test_any_strides() -> None:
    x = torch.randn(2, 3, 4, 6, 8).transpose(-1, -2)
    up = torch.randn(2, 3, 4, 4, 3)
    assert torch.equal(max_pool_2x2(x), max_pool_2x2(x.contiguous()))
    assert torch.equal(gradient(x, up.mT.contiguous().mT), gradient(x.contiguous(), up))


def test_second_derivatives_and_registration() -> None:
    x = torch.randn(1, 2, 2, 4, 4, requires_grad=True)
    assert torch.autograd.gradcheck(max_pool_2x2, (x,))
    assert torch.autograd.gradgradcheck(max_pool_2x2, (x,))
    torch.library.opcheck(torch.ops.coattend.max_pool.default, (x,))


def test_odd_sizes_are_refused_by_the_kernel_and_left_to_torch_by_the_layer() -> None:
    if not build_kernels():
        pytest.skip("no C++ compiler")
    with pytest.raises(ValueError, match="even height and width"):
        max_pool(torch.zeros(1, 1, 1, 3, 4))
    assert ca.nn.SpatialMaxPool2d(2)(torch.zeros(1, 1, 4, 5, 4)).shape == (1, 1, 4, 2, 2)


def test_exports_without_the_operator() -> None:
    x = torch.randn(2, 3, 4, 6, 6)
    exported = torch.export.export(ca.nn.SpatialMaxPool2d(2), (x,))
    assert "coattend" not in exported.graph_module.code
    assert torch.equal(exported.module()(x), max_pool_2x2(x))
    assert torch.equal(torch.vmap(max_pool_2x2)(x[None]), max_pool_2x2(x)[None])
