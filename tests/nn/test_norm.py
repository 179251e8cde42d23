from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

import coattend as ca
from tests.example_groups import EXACT

nn = ca.nn


def norms(channels: int) -> list[torch.nn.Module]:
    made = [
        nn.GroupBatchNorm2d(channels),
        nn.GroupLayerNorm2d(channels),
        nn.GroupInstanceNorm2d(channels, affine=True),
        nn.GroupGroupNorm2d(2, channels),
    ]
    for norm in made:
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    made[0].running_mean.normal_()
    made[0].running_var.uniform_(0.5, 2)
    return made


@pytest.mark.parametrize("name", EXACT)
def test_every_norm_commutes_with_every_element(name: str) -> None:
    G = ca.get_group(name)
    for norm in norms(4):
        ca.assert_equivariant(norm, torch.randn(3, 4, G.order, 5, 6), G, tol=1e-12)


def test_batch_norm_in_training_commutes_too_and_moves_its_statistics_alike() -> None:
    G, x = ca.dihedral(4), torch.randn(3, 4, 8, 5, 6) * 2 + 1
    straight = nn.GroupBatchNorm2d(4)
    y = straight(x)
    for g in G.elements:
        norm = nn.GroupBatchNorm2d(4)
        torch.testing.assert_close(norm(ca.groups.transform_map(x, G, g)), ca.groups.transform_map(y, G, g))
        torch.testing.assert_close(norm.running_var, straight.running_var)


def test_statistics_are_shared_over_the_axes_they_should_be() -> None:
    x = torch.randn(3, 4, 8, 5, 6) * 3 + 1
    for norm, axes in (
        (nn.GroupBatchNorm2d(4, affine=False), (0, 2, 3, 4)),
        (nn.GroupLayerNorm2d(4, affine=False), (1, 2)),
        (nn.GroupInstanceNorm2d(4), (2, 3, 4)),
        (nn.GroupGroupNorm2d(1, 4, affine=False), (1, 2, 3, 4)),
    ):
        variance, mean = torch.var_mean(x, dim=axes, correction=0, keepdim=True)
        torch.testing.assert_close(norm(x), (x - mean) / (variance + 1e-5).sqrt())
        assert not list(norm.parameters())


def test_parameters_per_channel_and_state() -> None:
    for norm in norms(6):
        assert sum(p.numel() for p in norm.parameters()) == 12
    assert list(nn.GroupBatchNorm2d(4).state_dict()) == [
        "weight",
        "bias",
        "running_mean",
        "running_var",
        "num_batches_tracked",
    ]


def test_a_norm_per_orientation_is_not_equivariant() -> None:
    class PerPose(torch.nn.BatchNorm2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.flatten(1, 2)).view_as(x)

    norm = PerPose(16)
    norm.running_mean.normal_()
    with pytest.raises(AssertionError):
        ca.assert_equivariant(norm, torch.randn(2, 4, 4, 5, 5), "p4")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_types(dtype: torch.dtype) -> None:
    x = torch.randn(2, 4, 8, 5, 5)
    for norm in norms(4):
        expected = norm.eval()(x)
        y = norm.to(dtype)(x.to(dtype))
        assert y.dtype == dtype
        torch.testing.assert_close(y.double(), expected, rtol=0.03, atol=0.05)


@pytest.mark.parametrize(
    "make",
    [
        nn.GroupBatchNorm2d,
        nn.GroupLayerNorm2d,
        partial(nn.GroupInstanceNorm2d, affine=True),
        partial(nn.GroupGroupNorm2d, 2),
    ],
)
def test_device_and_dtype_are_those_asked_for(make: Callable[..., torch.nn.Module]) -> None:
    norm = make(4, device="meta", dtype=torch.float16)
    assert {(p.device.type, p.dtype) for p in norm.parameters()} == {("meta", torch.float16)}
    fresh = norm.to_empty(device="cpu")
    fresh.reset_parameters()
    assert torch.equal(fresh.weight, torch.ones(4, dtype=torch.float16))
    assert torch.equal(fresh.bias, torch.zeros(4, dtype=torch.float16))


def test_layers_print_in_the_words_of_torch() -> None:
    assert repr(nn.GroupLayerNorm2d(4)) == "GroupLayerNorm2d(4, eps=1e-05, affine=True)"
    assert repr(nn.GroupBatchNorm2d(4, sync=True)).endswith("track_running_stats=True, sync=True)")
    assert repr(nn.SpatialMaxPool2d(2)) == "SpatialMaxPool2d(kernel_size=2, stride=2, padding=0)"
    assert repr(nn.GroupPool("p4m", over=(0, 4))) == "GroupPool(group=D4, reduce='max', over=(0, 4))"
    assert repr(nn.GroupDropout2d(0.3)) == "GroupDropout2d(p=0.3, elementwise=False)"
    assert repr(nn.CoAttention(3, "p4")) == "CoAttention(3, group=C4, structure='group')"
