"""Modules as users write them: converted correctly, or refused with the layer named; never silently wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import coattend as ca
from coattend.conversion import save_converted
from tests.conversion.architectures import NARROW, TimmSE
from tests.conversion.orbit_oracle import assert_orbit_mean

SIZE = 16


class Code(nn.Module):
    """A network whose forward is a function of the module and the images."""

    def __init__(self, forward: Callable[[nn.Module, Tensor], Tensor], **layers: nn.Module | Tensor) -> None:
        super().__init__()
        self.code = forward
        for name, layer in layers.items():
            setattr(self, name, nn.Parameter(layer) if isinstance(layer, Tensor) else layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.code(self, x)


def stem(out: int = 6, **options: object) -> nn.Conv2d:
    return nn.Conv2d(2, out, 3, padding=1, **options)


def untraceable(self: nn.Module, x: Tensor) -> Tensor:
    y = F.relu(self.conv(x))
    if y.mean() > 0:  # always: values after a ReLU
        y = self.second(y)
    return y.mean((2, 3))


def untraceable_with_a_direction(self: nn.Module, x: Tensor) -> Tensor:
    y = F.relu(self.conv(x))
    if y.mean() > 0:
        y = y + self.position
    return self.second(y).mean((2, 3))


class Gate(nn.Module):
    """A part of a network that torch.fx cannot trace."""

    def __init__(self, position: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(6, 6, 3, padding=1)
        self.position = nn.Parameter(torch.randn(SIZE, SIZE)) if position else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        if self.position is not None:
            y = y * self.position
        return y if float(y.abs().sum()) > 0 else x


def channel_shuffle(self: nn.Module, x: Tensor) -> Tensor:
    y = self.conv(x)
    b, c, h, w = y.shape
    y = y.view(b, 2, c // 2, h, w).transpose(1, 2).contiguous().view(b, c, h, w)
    return self.second(y).mean((2, 3))


def overwritten_parts(self: nn.Module, x: Tensor) -> Tensor:
    y = self.conv(x)
    z = y + 1
    z += y  # overwrites z, whose alias is read below
    y.mul_(2)
    return (z * y).mean((2, 3))


def statement_in_place(self: nn.Module, x: Tensor) -> Tensor:
    y = self.conv(x)
    F.relu_(y)
    y.add_(0.5)
    return y.amax((2, 3))


def writes_into_a_view(self: nn.Module, x: Tensor) -> Tensor:
    y = self.conv(x)
    y[:, :2] = 0
    return y.mean((2, 3))


def tokens_and_back(self: nn.Module, x: Tensor) -> Tensor:
    y = self.conv(x).flatten(2).transpose(1, 2)
    y = y + self.attention(y, y, y, need_weights=False)[0]
    return self.linear(y.mean(1))


def coordinates(self: nn.Module, x: Tensor) -> Tensor:
    rows = torch.linspace(-1, 1, SIZE, dtype=x.dtype)[:, None]
    return self.conv(x * rows + x).mean((2, 3))


def sliced(self: nn.Module, x: Tensor) -> Tensor:
    y = self.conv(x)
    return torch.cat([y[:, :3, ::2, ::2], y[:, 3:, 1::2, 1::2]], dim=1).mean(dim=[-1, -2])


CONVERTED: dict[str, Callable[[], nn.Module]] = {
    "functional calls": lambda: Code(
        lambda s, x: F.adaptive_avg_pool2d(F.max_pool2d(F.relu(s.bn(s.conv(x)), inplace=True), 2), 1).flatten(1),
        conv=stem(),
        bn=nn.BatchNorm2d(6),
    ),
    "functional convolution": lambda: Code(
        lambda s, x: F.conv2d(F.relu(s.conv(x)), s.weight, padding=1).mean((2, 3)),
        conv=stem(),
        weight=torch.randn(4, 6, 3, 3),
    ),
    "weight standardized in the forward": lambda: Code(
        lambda s, x: F.conv2d(x, s.weight - s.weight.mean((1, 2, 3), keepdim=True)).amax((2, 3)),
        weight=torch.randn(4, 2, 3, 3),
        unused=stem(),
    ),
    "view with the batch size": lambda: Code(
        lambda s, x: s.fc(F.adaptive_avg_pool2d(s.conv(x), 1).view(x.size(0), -1)), conv=stem(), fc=nn.Linear(6, 3)
    ),
    "view with a hard-coded number of features": lambda: Code(
        lambda s, x: s.fc(s.conv(x).view(-1, 6 * SIZE * SIZE)), conv=stem(), fc=nn.Linear(6 * SIZE * SIZE, 3)
    ),
    "linear after flatten": lambda: nn.Sequential(stem(), nn.ReLU(), nn.Flatten(), nn.Linear(6 * SIZE * SIZE, 3)),
    "shared module": lambda: Code(
        lambda s, x: s.second(F.relu(s.second(F.relu(s.conv(x))))).mean((2, 3)),
        conv=stem(),
        second=nn.Conv2d(6, 6, 3, padding=1),
    ),
    "module shared by image and map": lambda: Code(
        lambda s, x: s.conv(F.relu(s.conv(x))).mean((2, 3)), conv=nn.Conv2d(2, 2, 3, padding=1)
    ),
    "operations in place": lambda: Code(overwritten_parts, conv=stem()),
    "statements in place": lambda: Code(statement_in_place, conv=stem()),
    "normalization of the input": lambda: Code(
        lambda s, x: s.conv((x - s.mean) / s.std).amax((2, 3)),
        conv=stem(),
        mean=torch.randn(1, 2, 1, 1),
        std=torch.rand(2, 1, 1) + 1,
    ),
    "pooling of the input": lambda: Code(lambda s, x: s.conv(F.avg_pool2d(x, 2)).amax((2, 3)), conv=stem()),
    "position embedding": lambda: Code(
        lambda s, x: s.second(s.conv(x) + s.position).mean((2, 3)),
        conv=stem(),
        position=torch.randn(1, 6, SIZE, SIZE),
        second=nn.Conv2d(6, 4, 3),
    ),
    "coordinates": lambda: Code(coordinates, conv=stem()),
    "channel shuffle": lambda: Code(channel_shuffle, conv=stem(), second=nn.Conv2d(6, 4, 3)),
    "space to depth": lambda: nn.Sequential(
        stem(4),
        nn.PixelUnshuffle(2),
        nn.Conv2d(16, 8, 3),
        nn.PixelShuffle(2),
        nn.Conv2d(2, 3, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ),
    "one row of pixels": lambda: Code(lambda s, x: s.conv(x)[:, :, 0].amax(-1), conv=stem()),
    "slices": lambda: Code(sliced, conv=stem()),
    "channels in two parts": lambda: Code(
        lambda s, x: (s.conv(x).chunk(2, dim=1)[0] * torch.sigmoid(s.conv(x)[:, 3:])).mean((2, 3)), conv=stem()
    ),
    "kernels that are not square": lambda: nn.Sequential(
        nn.Conv2d(2, 4, (1, 7), padding=(0, 3)),
        nn.ReLU(),
        nn.Conv2d(4, 4, (7, 1), padding=(3, 0)),
        nn.ReLU(),
        nn.Conv2d(4, 3, (1, 2)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ),
    "same padding of an even kernel": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 4, padding="same"),
        nn.ReLU(),
        nn.Conv2d(4, 3, 3, padding="same", dilation=2),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
    ),
    "padding on two sides": lambda: nn.Sequential(
        nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(2, 4, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ),
    "circular and reflected padding": lambda: nn.Sequential(
        stem(padding_mode="circular"),
        nn.ReLU(),
        nn.ReflectionPad2d(2),
        nn.Conv2d(6, 4, 3, padding=1, padding_mode="reflect"),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ),
    "norms over positions": lambda: nn.Sequential(
        stem(),
        nn.GroupNorm(3, 6),
        nn.ReLU(),
        nn.InstanceNorm2d(6, affine=True),
        nn.LayerNorm((6, SIZE, SIZE)),
        nn.Conv2d(6, 3, 3),
        nn.LocalResponseNorm(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ),
    "pooling with indices": lambda: Code(
        lambda s, x: F.max_unpool2d(*F.max_pool2d(s.conv(x), 2, return_indices=True), 2).amax((2, 3)), conv=stem()
    ),
    "average of inner pixels": lambda: nn.Sequential(
        stem(),
        nn.AvgPool2d(3, 1, 1, count_include_pad=False),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.AdaptiveAvgPool2d(3),
        nn.Conv2d(6, 3, 1),
        nn.Flatten(),
        nn.Linear(27, 2),
    ),
    "skip at another size": lambda: Code(
        lambda s, x: (F.interpolate(s.second(F.max_pool2d(s.conv(x), 2)), size=x.shape[-2:]) * s.conv(x)).mean((2, 3)),
        conv=stem(),
        second=nn.Conv2d(6, 6, 3, padding=1),
    ),
    "transposed convolutions": lambda: nn.Sequential(
        stem(),
        nn.ConvTranspose2d(6, 4, 3, 2, 1, groups=2),
        nn.ReLU(),
        nn.ConvTranspose2d(4, 3, 3, 2, 1, output_padding=1),
    ),
    "squeeze-excite of timm": lambda: nn.Sequential(stem(), TimmSE(6), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    "attention over pixels": lambda: Code(
        tokens_and_back,
        conv=nn.Conv2d(2, 6, 4, 4),
        attention=nn.MultiheadAttention(6, 2, batch_first=True),
        linear=nn.Linear(6, 3),
    ),
    "control flow": lambda: Code(untraceable, conv=stem(), second=nn.Conv2d(6, 3, 3)),
    "control flow and a direction": lambda: Code(
        untraceable_with_a_direction, conv=stem(), second=nn.Conv2d(6, 3, 3), position=torch.randn(SIZE, SIZE)
    ),
    "a part with control flow": lambda: nn.Sequential(
        stem(), Gate(position=False), nn.ReLU(), nn.Conv2d(6, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ),
    "a part with control flow and a direction": lambda: nn.Sequential(
        stem(), Gate(position=True), nn.ReLU(), nn.Conv2d(6, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ),
    "a part of a tensor overwritten": lambda: Code(writes_into_a_view, conv=stem()),
    "spectral norm": lambda: nn.Sequential(
        nn.utils.parametrizations.spectral_norm(stem()), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ),
    "a map of the image": lambda: nn.Sequential(stem(), nn.ReLU(), nn.Conv2d(6, 3, 3, padding=1), nn.Softmax2d()),
}


def batch_mixing(self: nn.Module, x: Tensor) -> Tensor:
    y = self.conv(x).mean((2, 3))
    return F.relu(y - y.mean(0))


def alias_in_place(self: nn.Module, x: Tensor) -> Tensor:
    y = self.conv(x)
    z = y[:, :3]
    z.mul_(3)  # y changes as well
    return y.mean((2, 3))


def fixed_batch(self: nn.Module, x: Tensor) -> Tensor:
    return self.fc(self.conv(x).mean((2, 3)).view(3, 6))


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = stem()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.conv(x).mean((2, 3)) * self.calls


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "images of a batch combined": (lambda: Code(batch_mixing, conv=stem()), "mean|sub"),
    "an alias overwritten": (lambda: Code(alias_in_place, conv=stem()), "mul_|mean"),
    "fixed number of images": (lambda: Code(fixed_batch, conv=stem(), fc=nn.Linear(6, 2)), "view|fc"),
    "random numbers": (
        lambda: Code(lambda s, x: s.conv(x + torch.randn_like(x)).mean((2, 3)), conv=stem()),
        "conv|randn_like|add",
    ),
    "an output of unknown axes": (lambda: Code(lambda s, x: s.conv(x).flatten(2), conv=stem()), "the output .flatten"),
    "two inputs": (lambda: TwoInputs(), "forward takes x, y"),
    "a network on a group": (
        lambda: nn.Sequential(ca.nn.LiftingConv2d(2, 3, 3, "p4"), ca.nn.GroupPool("p4")),
        "over C4 already",
    ),
    "a state": (lambda: Counter(), "Counter|mul|network"),
}


class TwoInputs(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.parametrize("name", CONVERTED)
@pytest.mark.parametrize("group", ["p4", "p4m"])
def test_what_users_write_is_converted_exactly(name: str, group: str) -> None:
    model = CONVERTED[name]().double().eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    network = ca.equivariantize(model, group, size=SIZE, strides="own-frame")
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())  # it is not changed
    x = torch.randn(2, 2, SIZE, SIZE, dtype=torch.float64)
    assert_orbit_mean(model, network, x, group, 1e-11)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_converted_is_refused_with_the_layer(name: str) -> None:
    build, named = REFUSED[name]
    with pytest.raises(ca.ConversionError, match=named) as refusal:
        ca.equivariantize(build().double().eval(), "p4", size=SIZE)
    assert refusal.value.layer
    assert refusal.value.reason
    assert refusal.value.remedy


def test_there_are_at_least_thirty() -> None:
    assert len(NARROW) + len(CONVERTED) + len(REFUSED) >= 30


def test_weights_of_zero_hide_no_fault() -> None:
    model = Code(alias_in_place, conv=stem()).double()
    nn.init.zeros_(model.conv.weight)
    nn.init.zeros_(model.conv.bias)
    with pytest.raises(ca.ConversionError):
        ca.equivariantize(model, "p4", size=SIZE)


@pytest.mark.parametrize("name", ["a part with control flow", "control flow"])
def test_convolutions_are_replaced_where_code_cannot_be_traced(name: str) -> None:
    network = ca.equivariantize(CONVERTED[name]().double(), "p4", size=SIZE)
    assert not any(isinstance(m, nn.Conv2d) for m in network.modules())
    assert "convolutions replaced" in {record.how for record in network.records}


class Again(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.up, self.act, self.linear = nn.ConvTranspose2d(4, 4, 1), nn.PReLU(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(2):
            x = self.up(self.act(self.norm(self.layer(x))))
        return self.linear(x.mean((2, 3)))


def test_layers_that_are_called_twice_stay_one(tmp_path: Path) -> None:
    plain = Again().eval()
    network = ca.equivariantize(plain, "p4", size=12, relative=(0,))
    assert sum(p.numel() for p in network.parameters()) == sum(p.numel() for p in plain.parameters())
    kinds = [type(module) for module in network.modules()]
    assert [kinds.count(kind) for kind in (ca.nn.GroupConv2d, ca.nn.GroupBatchNorm2d, nn.PReLU)] == [1, 1, 1]
    save_converted(network, tmp_path / "c.safetensors")


def test_untraceable_code_is_converted_alike_in_every_type() -> None:
    class Depends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(6, 6, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.conv(x)
            return y if float(y.abs().sum()) > 0 else x

    plain = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), Depends(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    wide, narrow = (ca.equivariantize(plain.to(dtype), "p4", size=12) for dtype in (torch.float64, torch.float32))
    assert narrow.records == wide.records
    assert narrow.records[1].how == "convolutions replaced"


KEYWORDS: dict[str, Callable[[Tensor], Tensor]] = {
    "permute": lambda y: y.permute(dims=(0, 2, 3, 1)).mean((1, 2)),
    "transpose": lambda y: y.transpose(dim0=2, dim1=3).mean((2, 3)),
    "chunk": lambda y: torch.cat(tensors=[y.chunk(chunks=2, dim=1)[1], y[:, :2]], dim=1).mean((2, 3)),
    "split": lambda y: y.split(split_size=2, dim=1)[1].mean((2, 3)),
    "layer norm": lambda y: F.layer_norm(y, y.shape[2:]).abs().mean((2, 3)),
}


@pytest.mark.parametrize("name", KEYWORDS)
def test_arguments_by_name(name: str) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.linear = nn.Conv2d(1, 4, 3), nn.Linear(2 if name == "split" else 4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(KEYWORDS[name](self.conv(x)))  # type: ignore[no-any-return]

    assert ca.equivariantize(Named(), "p4", size=9).difference < 1e-9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"relative": {"laier.*": None}}, r"poses for 'laier.\*', which no layer is called; .* layers are 0, 1"),
        ({"mode": "project", "relative": None, "attention": True}, "has no relative and no attention"),
        ({"mode": "project", "verify": False}, "has no verify"),
        ({"mode": "template", "relative": None}, "mode='template' has no relative"),
        ({"size": -3}, "whole number of pixels, at least 1, got -3"),
        ({"size": 16.0}, "got 16.0"),
    ],
)
def test_options_without_effect_and_sizes_that_are_none_are_refused(options: dict[str, object], message: str) -> None:
    plain = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(ValueError, match=message):
        ca.equivariantize(plain, "p4", **options)  # type: ignore[arg-type]


def test_norms_stay_synchronized() -> None:
    plain = nn.Sequential(nn.Conv2d(1, 4, 3), nn.SyncBatchNorm(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    norms = [m for m in ca.equivariantize(plain, "p4", size=9).modules() if isinstance(m, ca.nn.GroupBatchNorm2d)]
    assert [norm.sync for norm in norms] == [True]
