"""is_exact never calls a network exact that is not: planted faults, sound networks, and what cannot be decided."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm

import coattend as ca
from coattend.equivariance.exactness import exactness
from coattend.models.factory import exactness_line

nn = ca.nn
Sequential = torch.nn.Sequential


def pooled(*tail: torch.nn.Module, group: str = "p4") -> Sequential:
    """Lifting, norm and ReLU, group pooling, then what is in question."""
    return Sequential(
        nn.LiftingConv2d(1, 4, 3, group, padding=1), nn.GroupBatchNorm2d(4), torch.nn.ReLU(), nn.GroupPool(group), *tail
    )


def folded(layer: torch.nn.Module, poses: int = 4) -> Sequential:
    """A layer of torch on channels and poses folded into one axis."""
    return Sequential(
        nn.LiftingConv2d(1, 4, 3, "p4", padding=1),
        torch.nn.Flatten(1, 2),
        layer,
        torch.nn.Unflatten(1, (4, poses)),
        nn.GroupPool("p4"),
    )


class BiasPerPose(torch.nn.Module):
    """At zero, as it starts, it changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


class Applied(torch.nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


BROKEN: dict[str, Callable[[], torch.nn.Module]] = {
    "a plain convolution": lambda: pooled(torch.nn.Conv2d(4, 4, 3, padding=1)),
    "C4, then clockwise C4": lambda: Sequential(
        nn.LiftingConv2d(1, 4, 3, "p4"), nn.IsotonicConv2d(4, 4, 3), nn.GroupPool("p4")
    ),
    "batch norm over folded poses": lambda: folded(torch.nn.BatchNorm2d(16)),
    "a bias per pose": lambda: Sequential(nn.LiftingConv2d(1, 4, 3, "p4"), BiasPerPose(), nn.GroupPool("p4")),
    "a flattened linear head": lambda: pooled(torch.nn.Flatten(), torch.nn.Linear(4 * 12 * 12, 3)),
    "padding on one side": lambda: pooled(torch.nn.ZeroPad2d((0, 1, 0, 1))),
    "upsampling by 1.5": lambda: pooled(torch.nn.Upsample(scale_factor=1.5), torch.nn.AvgPool2d(2)),
    "pixel shuffle": lambda: pooled(torch.nn.PixelShuffle(2)),
    "windows that are not square": lambda: pooled(torch.nn.AvgPool2d((1, 2))),
    "strides that are not square": lambda: pooled(torch.nn.MaxPool2d(2, stride=(2, 1))),
    "functional pooling": lambda: pooled(Applied(lambda x: F.max_pool2d(x, 3, 2))),
    "slicing": lambda: pooled(Applied(lambda x: x[..., ::2, ::2])),
    "poses rolled by hand": lambda: Sequential(
        nn.LiftingConv2d(1, 4, 3, "p4m"), Applied(lambda x: x.roll(1, 2)), nn.GroupConv2d(4, 4, 3, "p4m")
    ),
    "one pose picked": lambda: Sequential(nn.LiftingConv2d(1, 4, 3, "p4"), Applied(lambda x: x[:, :, 0])),
    "noise": lambda: pooled(Applied(F.dropout)),
    "a layer over the trivial group": lambda: Sequential(
        nn.LiftingConv2d(1, 4, 3, "z2"), nn.GroupPool("z2"), nn.LiftingConv2d(4, 4, 3, "p4")
    ),
    "a plain network": lambda: Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU()),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_does_not_commute_is_not_exact(name: str) -> None:
    assert not ca.is_exact(BROKEN[name](), 12)
    assert exactness(BROKEN[name](), 12).reason.startswith(("it does not commute with", "no layer of it is built over"))


class UNet(torch.nn.Module):
    """Dense output: down by pooling, up by repetition, joined."""

    def __init__(self, group: str) -> None:
        super().__init__()
        self.first = nn.LiftingConv2d(1, 3, 3, group, padding=1)
        self.down = nn.SpatialMaxPool2d(2)
        self.deep = Sequential(
            nn.GroupConv2d(3, 3, 3, group, padding=1), nn.GroupBatchNorm2d(3), nn.CoAttention(3, group)
        )
        self.up = nn.SpatialUpsample2d(2)
        self.last = Sequential(nn.GroupConv2d(6, 2, 3, group, padding=1), nn.GroupPool(group))

    def forward(self, x: Tensor) -> Tensor:
        fine = self.first(x).relu()
        return self.last(torch.cat([fine, self.up(self.deep(self.down(fine)).relu())], dim=1))


class Block(torch.nn.Module):
    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.main = Sequential(
            nn.GroupConv2d(channels, channels, 3, "p4", stride=stride, padding=1),
            nn.GroupBatchNorm2d(channels),
            torch.nn.ReLU(),
            nn.GroupConv2d(channels, channels, 3, "p4", padding=1),
            nn.GroupBatchNorm2d(channels),
        )
        torch.nn.init.zeros_(self.main[-1].weight)  # as ResNets start: the branch adds nothing
        self.short = nn.GroupConv2d(channels, channels, 1, "p4", stride=stride) if stride > 1 else torch.nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.main(x) + self.short(x))


def resnet18() -> Sequential:
    return Sequential(
        nn.LiftingConv2d(1, 1, 7, "p4", stride=2, padding=3),
        nn.SpatialMaxPool2d(3, stride=2, padding=1),
        *(Block(1, stride) for stride in (1, 1, 2, 1, 2, 1, 2, 1)),
        nn.GroupPool("p4"),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(1, 3),
    )


def test_a_resnet_18_is_exact_on_225_pixels_and_not_on_224() -> None:
    net = resnet18()
    assert not ca.is_exact(net, 224)
    assert ca.is_exact(net, 225)


def test_a_unet_is_exact_where_its_pooling_divides() -> None:
    net = UNet("p4m")
    assert ca.is_exact(net, 12)
    assert ca.is_exact(net, (12, 16))
    assert not ca.is_exact(UNet("C8"), 12)


def test_mirrors_of_columns_do_not_mind_a_height_that_does_not_divide() -> None:
    net = Sequential(nn.LiftingConv2d(1, 3, 2, "D1", stride=2), nn.GroupPool("D1"))
    assert ca.is_exact(net, (13, 12))
    assert not ca.is_exact(net, (12, 13))


class Scores(torch.nn.Module):
    """(batch, 2, 4) by its shape is poses or invariant; both are read."""

    def __init__(self) -> None:
        super().__init__()
        self.net = pooled(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).unflatten(1, (2, 4))


SOUND: dict[str, Callable[[], torch.nn.Module]] = {
    "invariant scores": Scores,
    "maps of poses": lambda: Sequential(nn.LiftingConv2d(1, 4, 3, "p4m"), nn.GroupPool("p4m", over=(0, 4))),
    "half precision": lambda: pooled().half(),
    "dropout and in-place layers": lambda: pooled(torch.nn.Dropout(), torch.nn.ReLU(inplace=True)),
    "weight norm": lambda: Sequential(weight_norm(nn.LiftingConv2d(1, 4, 3, "p4")), nn.GroupPool("p4")),
    "instance norm": lambda: Sequential(nn.LiftingConv2d(1, 4, 3, "p4"), nn.GroupInstanceNorm2d(4), nn.GroupPool("p4")),
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_what_commutes_is_exact(name: str) -> None:
    assert exactness(SOUND[name](), 12) == exactness(SOUND[name](), 12)
    assert exactness(SOUND[name](), 12).proven


def test_a_pruned_network_is_copied_too() -> None:
    net = pooled()
    prune.random_unstructured(net[0], "weight", 0.5)
    net(torch.randn(1, 1, 12, 12))
    assert ca.is_exact(net, 12)


def dead() -> torch.nn.Module:
    return pooled(torch.nn.AdaptiveAvgPool2d(1), Applied(lambda x: F.relu(-1e3 - x.square())))


def nan_weights() -> torch.nn.Module:
    net = pooled()
    net[0].weight.data[0, 0, 1, 1] = float("nan")
    return net


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (dead, "an output is constant"),
        (lambda: pooled(Applied(lambda x: x.argmax(1))), "an output is constant"),
        (lambda: pooled(Applied(lambda x: x * 0 + 1)), "an output is constant"),
        (lambda: pooled(Applied(torch.sum)), "has no batch axis"),
        (nan_weights, "its weights are not finite"),
        (lambda: pooled(torch.nn.Flatten(), torch.nn.Linear(7, 7)), "cannot be run on these images"),
        (lambda: torch.nn.Conv2d(1, 1, 3), "no layer of it is built over a group"),
        (lambda: ca.create_model("a_p4cnn:structure=full"), "structure='full') does not commute with C4"),
        (lambda: ca.create_model("p4cnn:group=C8,width=2"), "C8 has 4 exact elements of 8"),
    ],
)
def test_what_shows_nothing_is_not_called_exact(make: Callable[[], torch.nn.Module], reason: str) -> None:
    found = exactness(make(), 12)
    assert not found.proven
    assert reason in found.reason


def test_the_model_and_the_random_numbers_stay_as_they_were() -> None:
    net = pooled(torch.nn.Dropout()).float()
    net[1].eval()
    modes = [m.training for m in net.modules()]
    state = {k: v.clone() for k, v in net.state_dict().items()}
    chance = torch.get_rng_state()
    assert ca.is_exact(net, 12)
    assert torch.equal(torch.get_rng_state(), chance)
    assert [m.training for m in net.modules()] == modes
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())


@pytest.mark.parametrize("size", [0, -1, "x", 2.5, True, None, (3,), (3, 0), (3, 4, 5)])
def test_sizes_that_are_none_are_refused(size: object) -> None:
    with pytest.raises(ValueError, match="size must be a positive number of pixels or a pair"):
        ca.is_exact(pooled(), size)


def test_models_that_cannot_be_measured_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expects a torch\.nn\.Module, got NoneType"):
        ca.is_exact(None, 12)
    with pytest.raises(ValueError, match="on the meta device there is nothing to measure"):
        ca.is_exact(pooled().to("meta"), 12)
    with pytest.raises(ValueError, match="larger than the padded"):
        ca.is_exact(ca.create_model("p4cnn:width=2"), 9)


@pytest.mark.parametrize(
    ("name", "size", "line"),
    [
        ("p4cnn:width=2", 28, "p4cnn is exactly equivariant to C4 on images of 28 x 28"),
        (
            "p4m_allcnn:width=2",
            20,
            "p4m_allcnn is NOT exactly equivariant to D4 on images of 20 x 20: use images of 17 x 17 or 21 x 21 "
            "pixels, or p4m_allcnn:downsample=pool",
        ),
        (
            "p4m_allcnn:width=2",
            18,  # pooling twice does not divide it either
            "p4m_allcnn is NOT exactly equivariant to D4 on images of 18 x 18: use images of 17 x 17 or 21 x 21 pixels",
        ),
        (
            "a_p4cnn:width=2,structure=full",
            28,
            "a_p4cnn is NOT exactly equivariant to C4 on images of 28 x 28: "
            "CoAttention(2, group=C4, structure='full') does not commute with C4",
        ),
        (
            "p4cnn:width=2,group=C8",
            28,
            "p4cnn is NOT exactly equivariant to C8 on images of 28 x 28: C8 has 4 exact elements of 8, the others "
            "are approximate",
        ),
        ("z2cnn:width=2", 28, "z2cnn is a plain network, equivariant to translations only"),
    ],
)
def test_one_line_says_whether_a_network_is_exact_and_what_would_make_it_so(name: str, size: int, line: str) -> None:
    assert exactness_line(ca.create_model(name), (size, size)) == line


def test_what_the_line_advises_is_exact() -> None:
    for size in (17, 21):
        assert ca.is_exact(ca.create_model("p4m_allcnn:width=2"), size)
    assert ca.is_exact(ca.create_model("p4m_allcnn:width=2,downsample=pool"), 20)


def test_signals_that_fade_without_norms_are_measured_too() -> None:
    net = ca.create_model("r_nin_x4:width=2")
    for parameter in net.parameters():
        parameter.data *= 1e-3
    assert ca.is_exact(net, 32)
    assert not ca.is_exact(net, 33)


def test_a_network_that_happens_to_be_dead_is_drawn_again() -> None:
    for seed in range(8):
        torch.manual_seed(seed)
        assert ca.is_exact(ca.create_model("p4m_allcnn:width=1"), 17)
