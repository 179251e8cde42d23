"""Layers that are computed together give what they give one by one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import coattend as ca
from coattend._timing import saved_bytes
from coattend.functional import memory_format
from coattend.functional._kernels import cpu
from coattend.functional.layout import channels_last
from coattend.nn import norm
from coattend.nn.sequence import FusedSequential


def layers(group: str = "p4") -> list[nn.Module]:
    return [ca.nn.CoAttention(3, group), ca.nn.GroupBatchNorm2d(3), nn.ReLU()]


@pytest.fixture(autouse=True)
def float32() -> None:
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)


def count(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, bool]]:
    """Return a list that grows by (with attention, with ReLU) whenever a norm is computed with others."""
    calls: list[tuple[bool, bool]] = []
    original = ca.nn.GroupBatchNorm2d.normalize

    def normalize(
        self: ca.nn.GroupBatchNorm2d,
        x: Tensor,
        matrix: Tensor | None = None,
        relu: bool = False,
        *rest: bool,
        **named: Any,
    ) -> Tensor:
        calls.append((matrix is not None, relu))
        return original(self, x, matrix, relu, *rest, **named)

    monkeypatch.setattr(ca.nn.GroupBatchNorm2d, "normalize", normalize)
    return calls


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("group", ["p4", "p4m", "C6"])
def test_is_the_plain_sequence(group: str, training: bool) -> None:
    parts = layers(group)
    fused, plain = FusedSequential(*parts).train(training), nn.Sequential(*layers(group)).train(training)
    plain.load_state_dict(fused.state_dict())
    x = channels_last(torch.randn(4, 3, ca.get_group(group).order, 6, 6))
    torch.testing.assert_close(fused(x), plain(x.double().float().contiguous()), rtol=1e-4, atol=1e-5)
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(fused.get_buffer(name), buffer, rtol=1e-4, atol=1e-6)


def test_what_is_computed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, x = count(monkeypatch), channels_last(torch.randn(2, 3, 4, 6, 6))
    FusedSequential(*layers())(x)
    FusedSequential(*layers()[1:])(x)
    FusedSequential(*layers()[:2])(x)
    FusedSequential(layers()[1], nn.Tanh())(x)
    assert calls == [(True, True), (False, True), (True, False), (False, False)]


def test_watched_and_changed_layers_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, x = count(monkeypatch), channels_last(torch.randn(2, 3, 4, 6, 6))

    class Shy(ca.nn.CoAttention):
        def mask(self, x: Tensor) -> Tensor:
            return torch.zeros_like(x)

    seen: list[Tensor] = []
    watched = FusedSequential(*layers())
    watched[0].register_forward_hook(lambda module, inputs, output: seen.append(output))
    watched(x)
    assert len(seen) == 1
    assert calls.pop() == (False, True)
    changed = FusedSequential(Shy(3, "p4"), *layers()[1:])
    assert changed(x).abs().max() == 0
    assert calls.pop() == (False, True)
    patched = FusedSequential(*layers())
    patched[2].forward = lambda x: x + 7  # type: ignore[method-assign]
    assert patched(x).min() > 0
    assert calls.pop() == (True, False)


def test_saves_its_input_and_what_the_next_layer_saves_too() -> None:
    x = channels_last(torch.randn(8, 3, 4, 16, 16)).requires_grad_()
    map_bytes = x.numel() * 4

    def maps(*parts: nn.Module) -> float:
        """The maps that are saved before a layer that saves its input, which is not counted."""
        return saved_bytes(FusedSequential(*parts, ca.nn.GroupConv2d(3, 3, 3, "p4")), x) / map_bytes - 1

    assert maps(*layers()) < 1.1
    assert maps(*layers()[1:]) < 1.1
    assert saved_bytes(nn.Sequential(*layers()), x) > 2.5 * map_bytes


def test_attention_saves_little_in_a_network() -> None:
    images = torch.randn(4, 1, 28, 28)
    with memory_format("channels_last"):
        attentive, plain = (
            saved_bytes(ca.create_model(name, dropout=0.0), images) for name in ("a_p4cnn:attention=output", "p4cnn")
        )
    assert attentive / plain < 1.25


@pytest.mark.parametrize("value", [0.0, float("nan"), 5e4])
@pytest.mark.parametrize("attends", [True, False])
def test_overwrites_only_what_nobody_else_reads(attends: bool, value: float) -> None:
    """Large numbers and NaN are computed twice, from the numbers before they were overwritten."""
    x = torch.randn(3, 3, 4, 9, 9)
    x[1, 1, 1, 4, 4] = value
    parts = layers() if attends else layers()[1:]
    network = FusedSequential(ca.nn.GroupConv2d(3, 3, 3, "p4"), *parts).eval()
    with memory_format("channels_last"):
        with torch.no_grad():
            own, before = network(x), x.clone()
            torch.testing.assert_close(x, before, equal_nan=True)
            rest = FusedSequential(*parts).eval()
            y = channels_last(x)
            rest(y)
            torch.testing.assert_close(y, before, equal_nan=True)
        watched: list[Tensor] = []
        handle = network[0].register_forward_hook(lambda module, inputs, output: watched.append(output))
        with torch.no_grad():
            again = network(x)
            before_norm = watched[0].clone()
            handle.remove()
            torch.testing.assert_close(network[0](x), before_norm, equal_nan=True)
        torch.testing.assert_close(own, again, equal_nan=True)
        torch.testing.assert_close(own, network(x).detach(), equal_nan=True)


def attentive(kind: str = "group", **options: Any) -> list[nn.Module]:
    """A convolution with 24 planes, co-attention, a norm that has seen something, and a ReLU."""
    group, channels = options.pop("group", "p4"), options.pop("channels", 6)
    convolution = ca.nn.GroupConv2d if kind == "group" else ca.nn.LiftingConv2d
    parts = [convolution(2, channels, 3, group, **options), ca.nn.CoAttention(channels, group)]
    parts += [ca.nn.GroupBatchNorm2d(channels), nn.ReLU()]
    for parameter in nn.ModuleList(parts).parameters():
        nn.init.normal_(parameter)
    parts[2](torch.randn(4, channels, ca.get_group(group).order, 3, 3))
    return parts


class Silent(ca.nn.GroupConv2d):
    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros(len(x), self.out_channels, self.group.order, *x.shape[-2:])


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether attention joined each convolution that it might have joined."""
    found: list[bool] = []
    original = norm.attention_joins

    def attention_joins(*arguments: Any) -> bool:
        found.append(original(*arguments))
        return found[-1]

    monkeypatch.setattr(norm, "attention_joins", attention_joins)
    return found


@pytest.mark.parametrize(
    ("kind", "options", "value"),
    [
        ("group", {}, 0.0),
        ("group", {}, float("nan")),
        ("group", {}, 5e4),  # logits for which the kernel takes its careful way
        ("group", {"padding": 1, "bias": False}, 0.0),
        ("lifting", {}, 0.0),
        ("lifting", {}, float("inf")),
        ("group", {"group": "p4m", "channels": 5}, 0.0),
        ("lifting", {"group": "C2", "channels": 4}, 0.0),
    ],
)
def test_a_convolution_and_all_after_it_are_one_pass(
    kind: str, options: dict[str, Any], value: float, passes: list[bool]
) -> None:
    network = FusedSequential(*attentive(kind, **options)).eval()
    order = ca.get_group(options.get("group", "p4")).order
    x = torch.randn(3, 2, order, 7, 6) if kind == "group" else torch.randn(3, 2, 7, 6)
    x.view(-1)[50] = value
    with memory_format("channels_last"), torch.no_grad():
        y = network(x)
    assert passes == [True]
    plain = nn.Sequential(*network).double()
    torch.testing.assert_close(y.double(), plain(x.double()), rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("group", {}),
        ("group", {"padding": 1, "bias": False}),
        ("lifting", {}),
        ("group", {"group": "p4m", "channels": 5}),
        ("lifting", {"group": "C2", "channels": 4}),
    ],
)
def test_attention_and_statistics_join_a_convolution_in_training(
    kind: str, options: dict[str, Any], relu: bool, passes: list[bool]
) -> None:
    network = FusedSequential(*attentive(kind, **options)[: 3 + relu])
    order = ca.get_group(options.get("group", "p4")).order
    x = (torch.randn(3, 2, order, 13, 9) if kind == "group" else torch.randn(3, 2, 13, 9)).requires_grad_()
    plain = nn.Sequential(*copy.deepcopy(list(network))).double()
    wide = x.detach().double().requires_grad_()
    with memory_format("channels_last"):
        y = network(x)
    exact = plain(wide)
    assert passes == [True]
    up = torch.randn(y.shape)
    ours = torch.autograd.grad(y, [x, *network.parameters()], up, retain_graph=True)
    theirs = torch.autograd.grad(exact, [wide, *plain.parameters()], up.double())
    tensors = zip((y.detach(), *ours, *network.buffers()), (exact.detach(), *theirs, *plain.buffers()), strict=True)
    for mine, other in tensors:
        scale = max(1.0, float(other.abs().max()))
        torch.testing.assert_close(mine.double(), other.double(), rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.skipif(not cpu.build_library() or not cpu.STATE.multiplies_bfloat16, reason="no products of bfloat16")
@pytest.mark.parametrize("kind", ["group", "lifting", "one channel"])
@pytest.mark.parametrize("autocasts", [True, False])
def test_attention_joins_a_convolution_in_bfloat16(
    kind: str, autocasts: bool, passes: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = FusedSequential(*attentive("group" if kind == "group" else "lifting"))
    if kind == "one channel":
        network[0] = ca.nn.LiftingConv2d(1, network[0].out_channels, 3, "p4")
    channels = network[0].in_channels
    x = torch.randn(5, channels, 4, 13, 9) if kind == "group" else torch.randn(5, channels, 13, 9)
    up, results = torch.randn(5, network[0].out_channels, 4, 11, 7).bfloat16(), []
    for joins in (True, False):
        net, given = copy.deepcopy(network), x.clone().requires_grad_()
        if not joins:
            monkeypatch.setattr(norm, "attention_joins", lambda *_: False)
        if not autocasts:
            net, given = net.bfloat16(), x.bfloat16().requires_grad_()
        with memory_format("channels_last"), torch.autocast("cpu", torch.bfloat16, enabled=autocasts):
            y = net(given)
        assert y.dtype == torch.bfloat16
        weights = [p for name, p in net.named_parameters() if name != "0.bias"]  # which has no effect
        results.append([y.detach(), *torch.autograd.grad(y, [given, *weights], up), *net.buffers()])
    assert passes == [True]
    # Convolutions that sum in another order round some responses to the next number, which may be another maximum.
    for joined, one_by_one in zip(*results, strict=True):
        assert joined.dtype == one_by_one.dtype
        assert float((joined - one_by_one).double().norm() / one_by_one.double().norm()) < 0.05


def test_second_gradients_of_a_convolution_that_attention_joins(passes: list[bool]) -> None:
    network = FusedSequential(*attentive())
    x = torch.randn(2, 2, 4, 5, 5, requires_grad=True)
    plain = nn.Sequential(*copy.deepcopy(list(network))).double()
    wide, found = x.detach().double().requires_grad_(), []
    with memory_format("channels_last"):
        for given, net in ((x, network), (wide, plain)):
            (slope,) = torch.autograd.grad(net(given).square().sum(), given, create_graph=True)
            found.append(torch.autograd.grad(slope.square().sum(), given)[0].double())
    assert passes == [True]
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4 * float(found[1].abs().max()))


def test_training_does_not_depend_on_the_number_of_threads(passes: list[bool]) -> None:
    network, x, results = FusedSequential(*attentive()), torch.randn(9, 2, 4, 13, 9), []
    with memory_format("channels_last"):
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append((network(x).detach(), network[2].running_mean.clone()))
            network[2].reset_running_stats()
    torch.set_num_threads(1)
    assert passes == [True, True]
    assert torch.equal(results[0][0], results[1][0])


def test_when_attention_does_not_join_a_convolution(passes: list[bool]) -> None:
    x = torch.randn(2, 2, 4, 7, 6)
    with memory_format("channels_last"):
        FusedSequential(*attentive()).eval()(x)  # with gradients
        with torch.no_grad():
            FusedSequential(*attentive())(x)  # in training, without
            watched = FusedSequential(*attentive()).eval()
            watched[1].register_forward_hook(lambda *_: None)
            watched(x)
            assert passes == []
            for options in ({"stride": 2}, {"channels": 4}, {"padding": 1, "padding_mode": "circular"}):
                FusedSequential(*attentive(**options)).eval()(x)
            FusedSequential(*attentive()).eval().double()(x.double())
            with torch.autocast("cpu", torch.bfloat16):
                FusedSequential(*attentive()).eval()(x)
            with memory_format("planes"):
                FusedSequential(*attentive()).eval()(x)
            FusedSequential(*attentive(relative=[0, 1])).eval()(x)
            assert FusedSequential(Silent(2, 6, 3, "p4"), *attentive()[1:3]).eval()(x).shape[-2:] == (7, 6)
            mixed = FusedSequential(*attentive()).eval()
            mixed[1].double()
            with pytest.raises(ValueError, match=r"CoAttention has torch.float64 parameters"):
                mixed(x)
    # Filters of some relative poses, subclasses and attention of another type are not asked about.
    assert passes == [False] * 4 + [cpu.STATE.multiplies_bfloat16, False]
    with torch.no_grad(), pytest.raises(ValueError, match="expects a map"):
        FusedSequential(*attentive()).eval()(x[:, :, :2])


def slices() -> list[nn.Module]:
    conv = ca.nn.SliceCoAttentiveConv2d(3, 3, 3, group="p4")
    nn.init.normal_(conv.bias)
    return [conv, ca.nn.GroupBatchNorm2d(3), nn.ReLU()]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("gradients", [True, False])
def test_a_norm_takes_the_bias_of_slices(training: bool, gradients: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = slices()
    fused, plain = FusedSequential(*parts), nn.Sequential(*slices())
    plain.load_state_dict(fused.state_dict())
    calls, x = count(monkeypatch), channels_last(torch.randn(4, 3, 4, 8, 8))
    with memory_format("channels_last"):
        for number in range(2):  # the second pass in evaluation has running statistics that the first one moved
            for model in (fused, plain):
                model.train(training or number == 0)
            with torch.set_grad_enabled(gradients):
                actual, expected = fused(x), plain(x)
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
            for name, buffer in plain.named_buffers():
                torch.testing.assert_close(fused.get_buffer(name), buffer, rtol=1e-4, atol=1e-6)
    assert (False, True) in calls
    if gradients:
        for y in (actual, expected):
            (y * torch.arange(y.numel()).view_as(y)).sum().backward()
        for (name, parameter), other in zip(fused.named_parameters(), plain.parameters(), strict=True):
            assert parameter.grad is not None
            assert other.grad is not None
            if training and name == "0.bias":
                assert bool((parameter.grad == 0).all())  # exactly; one by one it is what rounding leaves
                continue
            scale = other.grad.abs().max()
            torch.testing.assert_close(parameter.grad / scale, other.grad / scale, rtol=1e-3, atol=1e-4)


def test_slices_keep_the_type_of_autocast() -> None:
    conv, x = slices()[0], torch.randn(2, 3, 4, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        y = conv(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), conv(x), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", ["a_p4cnn", "a_p4cnn:attention=output"])
def test_no_kernel_convolves_in_float16(name: str) -> None:
    network, x = ca.create_model(name, width=2).float(), torch.randn(9, 1, 28, 28, dtype=torch.float32)
    for training in (True, False):
        with memory_format("channels_last"), torch.autocast("cpu", torch.float16):
            y = network.train(training)(x)
        assert y.dtype == torch.float16
        assert y.isfinite().all()
