"""The proof kit itself: it must find what is broken, pass what is not, and leave the module as it was."""

from __future__ import annotations

import pytest
import torch

import coattend as ca
from tests.some_groups import quaternions

nn = ca.nn


def test_errors_are_reported_for_every_element() -> None:
    layer = nn.LiftingConv2d(1, 2, 3, "p4m")
    errors = ca.equivariance_error(layer, torch.randn(1, 1, 8, 8), "p4m")
    assert list(errors) == list(range(8))
    assert max(errors.values()) < 1e-15
    assert errors[0] == 0


def test_an_error_of_known_size_is_measured_as_such() -> None:
    class AddsARow(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.clone()
            y[..., 0, :] += 3.0
            return y

    x = torch.randn(1, 1, 4, 4)
    errors = ca.equivariance_error(AddsARow(), x, "p4")
    size = torch.linalg.vector_norm(AddsARow()(x)).item()
    # Two rows of four pixels differ by 3 under a half turn; under a quarter turn row and column share a corner.
    assert errors[2] == pytest.approx(3 * 8**0.5 / size)
    assert errors[1] == pytest.approx(3 * 6**0.5 / size)


@pytest.mark.parametrize(
    "module",
    [
        torch.nn.Conv2d(1, 2, 3),
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3)),
        torch.nn.ZeroPad2d((0, 1, 0, 1)),
    ],
)
def test_what_is_not_equivariant_fails(module: torch.nn.Module) -> None:
    module.double()
    with pytest.raises(AssertionError, match=r"not equivariant to C4.*\n  turn 90° \(element 1\)") as failure:
        ca.assert_equivariant(module, torch.randn(1, 1, 8, 8), "p4")
    assert "coattend.diagnose" in str(failure.value)


def test_a_shape_that_changes_counts_as_infinite_error() -> None:
    class Squeezes(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[..., :3, :]

    errors = ca.equivariance_error(Squeezes(), torch.randn(1, 1, 5, 5), "p4")
    assert errors[1] == float("inf")


def test_nan_is_not_equivariant() -> None:
    class Nan(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * float("nan")

    with pytest.raises(AssertionError):
        ca.assert_equivariant(Nan(), torch.randn(1, 1, 5, 5), "p4")


def test_several_outputs_and_any_container() -> None:
    class Many(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lift = nn.LiftingConv2d(1, 2, 3, "p4")
            self.bad = torch.nn.Conv2d(1, 2, 3)
            self.broken = False

        def forward(self, x: torch.Tensor) -> dict:
            maps = self.lift(x)
            outputs = {"features": [maps, maps.amax(2)], "poses": maps.mean((-2, -1)), "logits": maps.mean((2, 3, 4))}
            return {**outputs, "bad": (self.bad(x),)} if self.broken else outputs

    many = Many()
    ca.assert_equivariant(many, torch.randn(2, 1, 7, 7), "p4")
    many.broken = True
    with pytest.raises(AssertionError):
        ca.assert_equivariant(many, torch.randn(2, 1, 7, 7), "p4")


def test_the_module_is_left_as_it_was() -> None:
    net = torch.nn.Sequential(nn.LiftingConv2d(1, 2, 3, "p4"), nn.GroupBatchNorm2d(2), torch.nn.Dropout(0.5))
    net[2].eval()
    state = {k: v.clone() for k, v in net.state_dict().items()}
    ca.assert_equivariant(net, torch.randn(2, 1, 7, 7), "p4")
    assert [m.training for m in net] == [True, True, False]
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
    assert net[0].weight.grad is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_tolerance_follows_the_dtype(dtype: torch.dtype) -> None:
    net = torch.nn.Sequential(
        nn.LiftingConv2d(1, 4, 3, "p4m"), nn.CoAttention(4, "p4m"), torch.nn.ReLU(), nn.GroupConv2d(4, 4, 3, "p4m")
    ).to(dtype)
    ca.assert_equivariant(net, torch.randn(2, 1, 9, 9, dtype=dtype), "p4m")
    with pytest.raises(AssertionError):
        ca.assert_equivariant(torch.nn.Conv2d(1, 2, 3, dtype=dtype), torch.randn(2, 1, 9, 9, dtype=dtype), "p4m")
    with pytest.raises(AssertionError, match="1e-17"):
        ca.assert_equivariant(net, torch.randn(2, 1, 9, 9, dtype=dtype), "p4m", tol=1e-17)


def test_bare_groups_move_poses_only() -> None:
    ca.assert_equivariant(nn.CoAttention(2, quaternions()), torch.randn(1, 2, 8, 3, 4), quaternions())
    with pytest.raises(AssertionError, match="element 1"):
        ca.assert_equivariant(nn.CoAttention(2, quaternions(), "full"), torch.randn(1, 2, 8, 3, 4), quaternions())


def test_a_group_axis_that_fits_nothing_is_explained() -> None:
    with pytest.raises(ValueError, match=r"input \(1, 2, 4, 5, 5\) has a group axis of 4, but D4 has order 8.*over=K"):
        ca.equivariance_error(torch.nn.ReLU(), torch.randn(1, 2, 4, 5, 5), "p4m")
    with pytest.raises(ValueError, match="returned no tensor"):
        ca.equivariance_error(Nothing(), torch.randn(1, 2, 5, 5), "p4m")


class Nothing(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> None:
        return None
