"""Planted faults must be found with their cause; sound networks must be left in peace."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import coattend as ca
from coattend.equivariance import Cause

nn = ca.nn
Sequential = torch.nn.Sequential


def around(*middle: torch.nn.Module, group: str = "p4m", channels: int = 4) -> Sequential:
    """A sound head and tail around the layers in question."""
    return Sequential(
        nn.LiftingConv2d(1, 4, 3, group, padding=1),
        nn.GroupBatchNorm2d(4),
        torch.nn.ReLU(),
        *middle,
        nn.GroupConv2d(channels, 4, 3, group),
        nn.GroupPool(group),
    )


class PerPoseBias(torch.nn.Module):
    """A user's own layer: one bias per channel and pose."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.randn(4, 8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


class CoordinateGate(torch.nn.Module):
    """A user's own layer: attention by absolute row."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.linspace(0, 1, x.shape[-2])[:, None]


class OwnNet(torch.nn.Module):
    """A user's own network whose fault lies in its forward, not in a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.LiftingConv2d(1, 4, 3, "p4m")
        self.conv = nn.GroupConv2d(4, 4, 3, "p4m")
        self.head = torch.nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.lift(x))
        x = x.roll(1, dims=2)  # poses relabelled by hand: right for C4, wrong for D4
        x = self.conv(x)
        return self.head(x.mean((2, 3, 4)))


class FlattenedHead(torch.nn.Module):
    """A linear layer over channels and poses, as in the ResNet44 of the G-CNN code."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.LiftingConv2d(1, 4, 3, "p4m")
        self.head = torch.nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lift(x).relu().mean((-2, -1)).flatten(1))


def trained_batch_norm(channels: int) -> torch.nn.BatchNorm2d:
    norm = torch.nn.BatchNorm2d(channels)
    torch.nn.init.normal_(norm.running_mean)
    return norm


FAULTS: dict[str, tuple[Callable[[], torch.nn.Module], str, Cause, str]] = {
    "stride": (
        lambda: around(nn.GroupConv2d(4, 4, 3, "p4m", stride=2, padding=1)),
        "3", Cause.STRIDE, "nearest exact input sizes: 15 x 15 and 17 x 17",
    ),
    "strided pooling": (
        lambda: around(nn.SpatialMaxPool2d(3, stride=2)),
        "3", Cause.STRIDE, "15 x 15 and 17 x 17",
    ),
    "ceil_mode": (
        lambda: around(
            torch.nn.Flatten(1, 2), torch.nn.MaxPool2d(3, 2, ceil_mode=True), torch.nn.Unflatten(1, (4, 8))
        ),
        "4", Cause.ASYMMETRIC, "ceil_mode completes the last window on one side only",
    ),
    "uneven padding": (
        lambda: around(torch.nn.Flatten(1, 2), torch.nn.ZeroPad2d((0, 1, 0, 1)), torch.nn.Unflatten(1, (4, 8))),
        "4", Cause.ASYMMETRIC, "pad all four sides equally",
    ),
    "interpolation": (
        lambda: around(group="C8"),
        "0", Cause.INTERPOLATION, "4 elements of C8 are exact, the others approximate",
    ),
    "per-orientation batch norm": (
        lambda: around(torch.nn.Flatten(1, 2), trained_batch_norm(32), torch.nn.Unflatten(1, (4, 8))),
        "4", Cause.PER_ORIENTATION, "GroupBatchNorm2d",
    ),
    "a user's per-orientation bias": (
        lambda: around(PerPoseBias()),
        "3", Cause.PER_ORIENTATION, "share parameters",
    ),
    "plain convolution": (
        lambda: Sequential(torch.nn.Conv2d(1, 1, 3), around()),
        "0", Cause.PLAIN_CONVOLUTION, "LiftingConv2d",
    ),
    "plain convolution per pose": (
        lambda: around(torch.nn.Conv3d(4, 4, (1, 3, 3), padding=(0, 1, 1))),
        "3", Cause.PLAIN_CONVOLUTION, "GroupConv2d",
    ),
    "attention as printed": (
        lambda: around(nn.CoAttention(4, "p4m", "paper", init_std=1.0)),
        "3", Cause.ATTENTION, 'structure="group"',
    ),
    "free attention inside a projection": (
        lambda: Sequential(
            nn.LiftingConv2d(1, 4, 3, "p4m"), nn.ProjectionConv2d(4, 2, 3, "p4m", attention=True, structure="full")
        ),
        "1.attention", Cause.ATTENTION, 'structure="group"',
    ),
    "another group": (
        lambda: Sequential(nn.LiftingConv2d(1, 4, 3, "p4"), nn.IsotonicConv2d(4, 4, 3), nn.GroupPool("p4")),
        "1", Cause.OTHER_GROUP, "built over C4 clockwise",
    ),
    "a user's coordinates": (
        lambda: around(CoordinateGate()),
        "3", Cause.POSITION, "absolute coordinates",
    ),
    "flattened positions": (
        lambda: Sequential(around(), torch.nn.Flatten(), torch.nn.Linear(4 * 14 * 14, 3)),
        "1", Cause.FLATTENED, "GroupPool",
    ),
    "flattened poses": (
        FlattenedHead,
        "head", Cause.FLATTENED, "GroupPool",
    ),
    "a user's forward": (
        OwnNet,
        "", Cause.OWN, "(g.x)[h] = g.(x[g^-1 h])",
    ),
}  # fmt: skip


def group_of(name: str) -> str:
    return {"interpolation": "C8", "another group": "p4"}.get(name, "p4m")


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_with_its_cause_and_remedy(name: str) -> None:
    make, layer, cause, remedy = FAULTS[name]
    diagnosis = ca.diagnose(make(), torch.randn(2, 1, 16, 16), group_of(name))
    assert not diagnosis.is_equivariant
    assert diagnosis.fault.name == layer
    assert diagnosis.fault.cause is cause
    assert remedy in diagnosis.fault.remedy
    assert diagnosis.fault.error > 1e-3
    for part in ("not equivariant", cause.value, diagnosis.fault.remedy):
        assert part in str(diagnosis)


def test_the_advised_sizes_are_exact_indeed() -> None:
    net = around(
        nn.GroupConv2d(4, 4, 3, "p4m", stride=2, padding=1), nn.GroupConv2d(4, 4, 3, "p4m", stride=2, padding=1)
    )
    diagnosis = ca.diagnose(net, torch.randn(1, 1, 32, 32), "p4m")
    assert "29 x 29 and 33 x 33" in diagnosis.fault.remedy
    for size in (29, 33):
        assert ca.diagnose(net, torch.randn(1, 1, size, size), "p4m").is_equivariant
    for size in (30, 31, 32):
        assert not ca.diagnose(net, torch.randn(1, 1, size, size), "p4m").is_equivariant


def test_only_the_first_of_two_faults_is_blamed() -> None:
    net = around(PerPoseBias(), nn.CoAttention(4, "p4m", "paper", init_std=1.0))
    diagnosis = ca.diagnose(net, torch.randn(1, 1, 16, 16), "p4m")
    assert diagnosis.fault.name == "3"
    broken = [report.name for report in diagnosis.layers if report.error > 1e-12]
    assert broken == ["3", "4"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("structure", ["group", "full"])
def test_outputs_that_are_not_finite_are_a_verdict_of_their_own(value: float, structure: str) -> None:
    net = around(nn.CoAttention(4, "p4m", structure))
    x = torch.randn(2, 1, 16, 16)
    with torch.no_grad():
        net[4].weight[0, 0, 0, 1, 1] = value
    by_weights = ca.diagnose(net, x, "p4m")
    assert not by_weights.is_equivariant
    assert (by_weights.fault.name, by_weights.fault.cause) == ("4", Cause.NOT_FINITE)
    assert "its weight hold NaN or Inf" in by_weights.fault.remedy
    assert str(by_weights).startswith("the outputs are not finite")
    x[0, 0, 3, 4] = value
    by_pixel = ca.diagnose(around(nn.CoAttention(4, "p4m", structure)), x, "p4m")
    assert not by_pixel.is_equivariant
    assert by_pixel.fault.cause is Cause.NOT_FINITE
    assert "the input holds NaN or Inf" in str(by_pixel)


def test_nan_everywhere_is_not_equivariant() -> None:
    x = torch.full((2, 1, 9, 9), float("nan"))
    assert not ca.diagnose(torch.nn.Conv2d(1, 1, 3), x, "p4").is_equivariant


def test_an_overflow_is_traced_to_its_layer() -> None:
    class Reciprocal(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 1 / x.clamp(min=0)

    fault = ca.diagnose(around(Reciprocal()), torch.randn(2, 1, 16, 16), "p4m").fault
    assert (fault.name, fault.layer, fault.cause) == ("3", "Reciprocal", Cause.NOT_FINITE)
    assert "divides by zero" in fault.remedy


def test_a_pooling_layer_is_not_advised_to_become_one() -> None:
    pooled = ca.diagnose(around(nn.SpatialMaxPool2d(2)), torch.randn(2, 1, 17, 17), "p4m")
    assert pooled.fault.cause is Cause.STRIDE
    assert "SpatialMaxPool2d" not in pooled.fault.remedy
    strided = ca.diagnose(around(nn.GroupConv2d(4, 4, 3, "p4m", stride=2, padding=1)), torch.randn(2, 1, 16, 16), "p4m")
    assert "stride 1 followed by SpatialMaxPool2d(2)" in strided.fault.remedy


def test_a_named_network_is_advised_its_own_option() -> None:
    x = torch.randn(1, 3, 16, 16)
    assert "or build it with downsample=pool" in ca.diagnose(ca.create_model("p4_allcnn:width=2"), x, "p4").fault.remedy
    nin = ca.diagnose(ca.create_model("r_nin_x4:width=2"), torch.randn(1, 3, 18, 18), "C4 clockwise")
    assert "downsample" not in nin.fault.remedy


def test_interpolation_is_not_called_a_fault_of_layers_that_are_sound() -> None:
    report = str(ca.diagnose(around(group="C8"), torch.randn(2, 1, 16, 16), "C8"))
    assert report.startswith("not equivariant to C8 beyond its 4 exact elements")
    assert "first fault" not in report
    assert "first layer whose filters are turned by other angles: 0 (LiftingConv2d)" in report
    assert 'filters="steerable", 5 x 5 kernels and smoother images reduce it' in report
    for kernel, advice in ((3, "; 5 x 5 kernels and smoother images"), (5, "; smoother images")):
        steerable = Sequential(nn.LiftingConv2d(1, 2, kernel, "C8", filters="steerable"), nn.GroupPool("C8"))
        remedy = ca.diagnose(steerable, torch.randn(2, 1, 16, 16), "C8").fault.remedy
        assert f"{advice} reduce it" in remedy
        assert "steerable" not in remedy
    own = ca.diagnose(torch.nn.ReLU(), torch.randn(1, 2, 8, 16, 16), "C8")
    assert "interpolation in the measurement itself" in own.fault.remedy


class InPlace(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2).relu_()


class Residual(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.GroupConv2d(4, 4, 3, "p4m", padding=1)
        self.act = torch.nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.conv(self.act(x.clone())) + x)


SOUND: dict[str, Callable[[], torch.nn.Module]] = {
    "plain stack": lambda: around(),
    "attention": lambda: around(nn.CoAttention(4, "p4m", init_std=1.0)),
    "slice attention": lambda: around(nn.SliceCoAttentiveConv2d(4, 4, 3, "p4m")),
    "projection head": lambda: Sequential(
        nn.LiftingConv2d(1, 4, 4, "p4m"), nn.ProjectionConv2d(4, 2, 3, "p4m", attention=True), torch.nn.AvgPool2d(11)
    ),
    "pooling that divides": lambda: around(nn.SpatialMaxPool2d(2)),
    "folded layout": lambda: around(torch.nn.Flatten(1, 2), torch.nn.MaxPool2d(2), torch.nn.Unflatten(1, (4, 8))),
    "in place": lambda: around(InPlace(), torch.nn.ReLU(inplace=True)),
    "residual with a shared activation": lambda: around(Residual(), Residual()),
    "norms and dropout": lambda: around(
        nn.GroupLayerNorm2d(4), nn.GroupInstanceNorm2d(4), nn.GroupGroupNorm2d(2, 4), nn.GroupDropout2d(0.3)
    ),
    "coset pooling": lambda: Sequential(
        nn.LiftingConv2d(1, 4, 3, "p4m"),
        nn.GroupPool("p4m", "max", over=(0, 4)),
        torch.nn.ReLU(),
        nn.SpatialAvgPool2d(2),
    ),
    "even kernels and dilation": lambda: around(nn.GroupConv2d(4, 4, 4, "p4m", dilation=2, padding=3)),
    "upsampling": lambda: around(nn.SpatialUpsample2d(2, mode="bilinear")),
    "1x1 plain convolution": lambda: Sequential(torch.nn.Conv2d(1, 1, 1), around()),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_network_is_left_in_peace(name: str) -> None:
    diagnosis = ca.diagnose(SOUND[name](), torch.randn(2, 1, 16, 12 if "head" not in name else 16), "p4m")
    assert diagnosis.is_equivariant
    assert diagnosis.fault is None
    assert str(diagnosis).startswith("equivariant to D4")


def test_the_module_is_left_as_it_was() -> None:
    net = around(PerPoseBias())
    state = {k: v.clone() for k, v in net.state_dict().items()}
    ca.diagnose(net, torch.randn(2, 1, 8, 8), "p4m")
    assert all(m.training for m in net.modules())
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
    assert not any(m._forward_pre_hooks for m in net.modules())


def test_a_plain_cnn_of_float32_is_diagnosed_too() -> None:
    torch.set_default_dtype(torch.float32)
    net = Sequential(
        torch.nn.Conv2d(3, 8, 1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 8, 3, stride=2, padding=1),
    )
    diagnosis = ca.diagnose(net, torch.randn(1, 3, 9, 9), "p4")
    assert (diagnosis.fault.name, diagnosis.fault.cause) == ("3", Cause.PLAIN_CONVOLUTION)
