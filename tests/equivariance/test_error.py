"""The proof kit itself: it must find what is broken, pass what is not, and leave the module as it was."""

from __future__ import annotations

import pytest
import torch

import coattend as ca
from tests.example_groups import quaternions

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
        ca.assert_equivariant(net, torch.randn(2, 1, 33, 33, dtype=dtype), "p4m", tol=1e-17)


def test_bare_groups_move_poses_only() -> None:
    ca.assert_equivariant(nn.CoAttention(2, quaternions()), torch.randn(1, 2, 8, 3, 4), quaternions())
    with pytest.raises(AssertionError, match="element 1"):
        ca.assert_equivariant(nn.CoAttention(2, quaternions(), "full"), torch.randn(1, 2, 8, 3, 4), quaternions())


def test_a_group_axis_that_fits_nothing_is_explained() -> None:
    with pytest.raises(ValueError, match=r"input \(1, 2, 4, 5, 5\) has a group axis of 4, but D4 has order 8.*over=K"):
        ca.equivariance_error(torch.nn.ReLU(), torch.randn(1, 2, 4, 5, 5), "p4m")
    with pytest.raises(ValueError, match="returned no tensor"):
        ca.equivariance_error(Nothing(), torch.randn(1, 2, 5, 5), "p4m")


class ScoresOfFour(torch.nn.Module):
    """Invariant scores (batch, 2, 4): an axis of the group's order that holds no poses."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels = torch.stack([x.mean((-2, -1)), x.amax((-2, -1)), x.amin((-2, -1)), x.std((-2, -1))], dim=-1)
        return levels.expand(-1, 2, -1)


def test_the_caller_can_say_how_the_output_moves() -> None:
    x = torch.randn(2, 1, 7, 7)
    assert max(ca.equivariance_error(ScoresOfFour(), x, "p4").values()) > 0.1  # by its shape it is poses
    assert max(ca.equivariance_error(ScoresOfFour(), x, "p4", output_layout="invariant").values()) < 1e-12
    ca.assert_equivariant(ScoresOfFour(), x, "p4", output_layout="invariant")
    assert ca.diagnose(ScoresOfFour(), x, "p4", output_layout="invariant").is_equivariant
    with pytest.raises(AssertionError):
        ca.assert_equivariant(nn.LiftingConv2d(1, 2, 3, "p4"), x, "p4", output_layout="image")


def test_layouts_of_several_outputs_are_named_one_by_one() -> None:
    class Both(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, ScoresOfFour()(x)

    x = torch.randn(2, 1, 7, 7)
    assert max(ca.equivariance_error(Both(), x, "p4", output_layout=[None, "invariant"]).values()) < 1e-12
    assert max(ca.equivariance_error(Both(), x, "p4", output_layout=["image", "poses"]).values()) > 0.1
    with pytest.raises(ValueError, match="names 1 layouts, but the module returned 2 tensors"):
        ca.equivariance_error(Both(), x, "p4", output_layout=["image"])


def test_folded_inputs_can_be_named() -> None:
    G = ca.get_group("p4m")
    folded = torch.nn.Sequential(torch.nn.Unflatten(1, (8, 2)), Transposed(), nn.GroupConv2d(2, 3, 3, G))
    x = torch.randn(1, 16, 6, 6)
    assert max(ca.equivariance_error(folded, x, G, input_layout="pose-major fold").values()) < 1e-12
    assert max(ca.equivariance_error(folded, x, G, input_layout="channel-major fold").values()) > 0.1
    assert max(ca.equivariance_error(folded, x, G).values()) > 0.1  # an image of 16 channels, by its shape


class Transposed(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("pose", "input_layout must be one of map, image, invariant, poses"),
        ("map", "cannot be laid out as 'map' over C4, which has order 4"),
        ("poses", "cannot be laid out as 'poses'"),
        ("pose-major fold", "cannot be laid out as 'pose-major fold'"),
    ],
)
def test_a_layout_that_does_not_fit_is_explained(layout: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ca.equivariance_error(torch.nn.ReLU(), torch.randn(1, 2, 5, 5), "p4", input_layout=layout)


@pytest.mark.parametrize(("name", "size"), [("C8", 9), ("C8", 28), ("D8", 16), ("C32", 9)])
def test_pointwise_layers_are_not_blamed_for_the_interpolation_of_the_ruler(name: str, size: int) -> None:
    """What commutes with interpolation is exact; a kink costs a hundredth, where a broken layer costs a fifth."""
    G = ca.get_group(name)
    x = torch.randn(1, 2, G.order, size, size)

    def worst(layer: torch.nn.Module) -> float:
        return max(ca.equivariance_error(layer, x, G).values())

    assert worst(nn.GroupConv2d(2, 3, 1, G)) < 1e-12
    assert worst(nn.CoAttention(2, G)) < 2e-3
    assert worst(torch.nn.ReLU()) < 0.015
    assert worst(torch.nn.Conv3d(2, 2, (1, 3, 3), padding=(0, 1, 1))) > 0.2
    assert worst(nn.CoAttention(2, G, "full", init_std=1.0)) > 0.1
    assert worst(nn.GroupConv2d(2, 3, 3, G, padding=1, filters="bicubic")) > 0.1  # which the layer answers for


def test_nan_in_one_of_several_outputs_is_not_lost() -> None:
    class Half(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, x * float("nan")

    for order in (Half(), Reversed(Half())):
        assert all(error != error for error in ca.equivariance_error(order, torch.randn(1, 1, 5, 5), "p4").values())


class Reversed(torch.nn.Module):
    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.module(x)[::-1]


@pytest.mark.parametrize("prove", [ca.assert_equivariant, ca.diagnose])
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, 1, 8, 8, dtype=torch.float64), "the input is constant, 0, and proves nothing"),
        (torch.ones(2, 1, 8, 8, dtype=torch.float64), "the input is constant, 1,"),
        (torch.zeros(0, 1, 8, 8, dtype=torch.float64), r"an input of shape \(0, 1, 8, 8\) is empty"),
        (None, "expected a tensor as the module's input, got NoneType"),
    ],
)
def test_an_input_without_content_proves_nothing(prove: object, x: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prove(torch.nn.Conv2d(1, 1, 3, bias=False), x, "p4")


@pytest.mark.parametrize("measure", [ca.equivariance_error, ca.assert_equivariant, ca.diagnose])
def test_a_bare_table_says_nothing_about_images(measure: object) -> None:
    bare = ca.FiniteGroup([[0, 1], [1, 0]])
    with pytest.raises(ValueError, match="is a bare table and does not say how its elements move an image"):
        measure(torch.nn.Conv2d(1, 1, 3), torch.randn(2, 1, 5, 5), bare)


@pytest.mark.parametrize("prove", [ca.assert_equivariant, ca.diagnose])
@pytest.mark.parametrize("tol", [float("nan"), -1.0, "x", True])
def test_tolerances_that_are_none_are_refused(prove: object, tol: object) -> None:
    with pytest.raises(ValueError, match="tol must be the largest relative error allowed"):
        prove(torch.nn.ReLU(), torch.randn(2, 1, 5, 5), "p4", tol=tol)


@pytest.mark.parametrize("measure", [ca.equivariance_error, ca.assert_equivariant, ca.diagnose])
def test_wrong_arguments_are_named(measure: object) -> None:
    x = torch.randn(1, 1, 5, 5)
    with pytest.raises(ValueError, match=r"expected a torch\.nn\.Module to measure, got NoneType"):
        measure(None, x, "p4")
    with pytest.raises(ValueError, match="expected a tensor as the module's input, got ndarray"):
        measure(torch.nn.ReLU(), x.numpy(), "p4")
    with pytest.raises(ValueError, match="expected a group or a group's name, got NoneType"):
        measure(torch.nn.ReLU(), x, None)
    with pytest.raises(ValueError, match=r"C8 turns tensors by interpolation, for which torch\.int64 is too coarse"):
        measure(torch.nn.Identity(), torch.arange(25).reshape(1, 1, 5, 5), "C8")


class Nothing(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> None:
        return None
