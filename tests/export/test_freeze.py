"""Frozen networks: the same outputs, nothing but torch inside, and a clear word where that is impossible."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import coattend as ca
from coattend.export import LayerTracer, freeze, freeze_layer
from coattend.export.freeze import frozen_with_outputs
from coattend.export.fused import FrozenForm, FrozenSliceConv2d
from coattend.export.graph import Builder, Value
from coattend.functional import memory_format
from coattend.functional._kernels import cpu, slice_convolution
from coattend.nn.observe import estimate_norm_statistics

# One plain and one attentive network per family; within a family the networks share their code.
NETWORKS = [
    "z2cnn", "p4cnn", "a_p4cnn", "dren_maxpool", "a_dren_maxpool", "p4_allcnn", "a_p4m_allcnn", "p4m_resnet44",
    "a_p4m_resnet44", "r_nin_x4", "a_r_nin_x4", "r_resnet20_x4", "a_r_resnet20_x4",
]  # fmt: skip
SMALL = {"resnet44": "width=3,blocks=1", "resnet20": "width=3,blocks=1", "nin": "width=6"}


def small(name: str) -> str:
    return f"{name}:{next((s for family, s in SMALL.items() if family in name), 'width=3')}"


def ready(model: nn.Module, *shape: int) -> nn.Module:
    """In evaluation mode, with norms that scale, some of them negatively, and shift."""
    estimate_norm_statistics(model, [torch.randn(4, *shape)])
    for module in model.modules():
        if getattr(module, "running_var", None) is not None:
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    return model.eval()


def check(model: nn.Module, *shape: int) -> torch.fx.GraphModule:
    model = ready(model, *shape)
    frozen = freeze(model)
    stored = saved_and_loaded(frozen)
    for batch in (1, 3):
        x = torch.randn(batch, *shape)
        before, expected = x.clone(), model(x)
        for network in (frozen, stored):
            torch.testing.assert_close(network(x), expected, rtol=1e-11, atol=1e-11)
        assert torch.equal(x, before)
    check_is_plain_torch(stored)
    return frozen


def saved_and_loaded(frozen: torch.fx.GraphModule) -> torch.fx.GraphModule:
    content = io.BytesIO()
    torch.save(frozen, content)
    content.seek(0)
    return torch.load(content, weights_only=False)


def check_is_plain_torch(frozen: torch.fx.GraphModule) -> None:
    assert {type(m).__module__.partition(".")[0] for m in frozen.modules()} == {"torch"}
    for module in frozen.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if node.op == "call_function":
                assert node.target is getattr or (node.target.__module__ or "torch").partition(".")[0] in (
                    "torch",
                    "_operator",
                )


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_freeze(name: str) -> None:
    size = ca.model_entry(name).image_size
    model = ca.create_model(small(name))
    frozen = check(model, model.in_channels, size, size)
    norms = sum(isinstance(m, nn.BatchNorm2d) for m in frozen.modules())
    if "resnet44" in name:  # pre-activation: what a norm reads is read by the shortcut as well
        assert norms == 4
    else:
        assert norms == 0


@pytest.mark.parametrize(
    "name",
    [
        "p4cnn:attention=output,position=norm,width=3",
        "p4cnn:attention=output,position=relu,width=3",
        "a_p4m_allcnn:width=3,downsample=pool,structure=paper",
        "a_p4cnn:width=3,structure=full,head=max",
        "a_p4m_resnet44:width=3,blocks=1,attention=slice,attend_shortcuts=false",
        "a_p4cnn:width=2,group=C8,attention=output",
        "p4cnn:width=2,group=D3,head=mean",
        "p4cnn:width=3,relative=0-2",
        "e4cnn:width=4",
        "e4cnn:width=4,generated=false,group=D4",
        "e4cnn:width=2,slices=1,group=C8,kernel=3,filters=steerable,attention=output,relative=0-2",
        "a_p4cnn:width=3,relative=0-1",
        "p4cnn:width=3,attention=gate,head=max",
        "p4cnn:width=2,attention=gate,group=C8,filters=steerable",
        "p4cnn:width=3,attention=slice_gate",
    ],
)
def test_every_option_freezes(name: str) -> None:
    size = ca.model_entry(name).image_size
    model = ca.create_model(name)
    check(model, model.in_channels, size, size)


def test_convolutions_see_four_axes_and_norms_are_folded() -> None:
    frozen = check(ca.create_model("a_p4cnn:attention=output,width=3"), 1, 28, 28)
    seen: list[int] = []
    for module in frozen.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].ndim))
    frozen(torch.randn(2, 1, 28, 28))
    assert seen == [4] * 7
    assert frozen.get_submodule("stages.0.layer2.conv.conv").weight.shape == (12, 12, 3, 3)


@pytest.mark.parametrize("attention", ["output", "slice"])
def test_kernels_join_convolution_and_attention_unless_somebody_watches(attention: str) -> None:
    model = ready(ca.create_model(f"a_p4cnn:attention={attention},width=6"), 1, 28, 28)
    frozen, x, seen = freeze(copy.deepcopy(model).float()), torch.randn(9, 1, 28, 28), []
    convs = [module for module in frozen.modules() if isinstance(module, nn.Conv2d)]
    with memory_format("channels_last"), torch.no_grad():
        expected = model(x)
        with mock.patch.object(nn.Conv2d, "forward", autospec=True, side_effect=nn.Conv2d.forward) as forward:
            joined = frozen(x.float())
        assert forward.call_count == 1  # of the head
        torch.testing.assert_close(joined.double(), expected, rtol=1e-4, atol=1e-4)
        for conv in convs:
            conv.register_forward_hook(lambda module, *_: seen.append(module))
        torch.testing.assert_close(frozen(x.float()).double(), expected, rtol=1e-4, atol=1e-4)
    assert len(seen) == len(convs) == 7


def test_a_norm_that_scales_by_zero_is_not_divided_by() -> None:
    model = ready(ca.create_model("a_p4cnn:attention=output,width=3"), 1, 28, 28)
    norm = model.stages[0].layer1.norm
    with torch.no_grad():
        norm.weight[1] = 0.0
    frozen = freeze(model)
    x = torch.randn(2, 1, 28, 28)
    torch.testing.assert_close(frozen(x), model(x))
    assert sum(isinstance(m, nn.BatchNorm2d) for m in frozen.modules()) == 1


class Branching(nn.Module):
    """Layers in a forward of one's own: a branch, a concatenation, functions, coset pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = ca.nn.LiftingConv2d(2, 4, 3, group="p4m", padding=1, padding_mode="reflect")
        self.left = ca.nn.GroupConv2d(4, 4, 3, group="p4m", padding=1, groups=2, bias=False)
        self.norm = ca.nn.GroupBatchNorm2d(4)
        self.other = nn.Sequential(
            ca.nn.GroupGroupNorm2d(2, 4), ca.nn.GroupLayerNorm2d(4), ca.nn.GroupInstanceNorm2d(4, affine=True)
        )
        self.attention = ca.nn.CoAttention(8, group="p4m")
        self.up = ca.nn.SpatialUpsample2d(2, "bilinear")
        self.pool = ca.nn.SpatialAvgPool2d(2)
        self.cosets = ca.nn.GroupPool("p4m", "mean", over=(0, 4))
        self.scale = nn.Parameter(torch.randn(1))

    def forward(self, x: Tensor) -> Tensor:
        lifted = self.lift(x)
        left = self.norm(self.left(lifted)) * self.scale
        joined = torch.cat([torch.relu(left), self.other(lifted).tanh()], 1)
        pooled = self.cosets(self.pool(self.up(self.attention(joined))))
        return pooled.mean((-2, -1)) - pooled.amax((-2, -1))


def test_ones_own_network_freezes() -> None:
    check(Branching(), 2, 9, 9)


class Aliasing(nn.Module):
    """A view of what is read again, then a ReLU; and one that overwrites what is read again."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.lift = ca.nn.LiftingConv2d(1, 2, 3, group="p4")
        self.flatten = nn.Flatten()
        self.act = nn.ReLU(inplace)

    def forward(self, x: Tensor) -> Tensor:
        y = self.lift(x)
        return self.act(self.flatten(y)) + torch.flatten(y, 1)


@pytest.mark.parametrize("inplace", [False, True])
def test_nothing_is_overwritten_that_is_read_again(inplace: bool) -> None:
    check(Aliasing(inplace), 1, 5, 5)


def test_a_plain_sequence_freezes() -> None:
    layers = [
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), ca.nn.CycleConv2d(2, 3, 3), nn.BatchNorm3d(3), nn.PReLU(3),
        ca.nn.IsotonicConv2d(3, 3, 2, stride=2), ca.nn.GroupDropout2d(0.5), ca.nn.DecycleConv2d(3, 4, 2), nn.Flatten(),
    ]  # fmt: skip
    frozen = check(nn.Sequential(*layers), 1, 12, 12)
    assert not any(isinstance(m, (nn.BatchNorm2d, nn.Dropout)) for m in frozen.modules())


def test_backbones_return_their_maps() -> None:
    backbone = ca.create_model("a_p4cnn:width=3", features_only=True).eval()
    x = torch.randn(2, 1, 28, 28)
    for frozen, expected in zip(freeze(backbone)(x), backbone(x), strict=True):
        torch.testing.assert_close(frozen, expected)


@pytest.mark.parametrize(
    "name",
    [
        "a_p4cnn:width=4",
        "a_p4cnn:width=4,attention=output",
        "p4cnn:width=4,attention=gate",
        "e4cnn:width=4",
        "a_p4m_resnet44:width=3,blocks=1",
    ],
)
def test_float32_in_one_pass(name: str) -> None:
    size = ca.model_entry(name).image_size
    model = ready(ca.create_model(name), ca.create_model(name).in_channels, size, size)
    x = torch.randn(3, model.in_channels, size, size)
    expected = model(x).detach()
    result = freeze(model.float())(x.float())
    torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize(
    "name",
    [
        "p4cnn:width=4",
        "a_p4cnn:width=4",
        "p4cnn:width=4,attention=gate",
        "e4cnn:width=4",
        "a_p4m_allcnn:width=3",
        "a_r_nin_x4:width=6",
        "p4cnn:width=3,attention=output,heads=2",
        "coat_vit:width=8,depth=1,token_heads=2,mlp=2",
    ],
)
def test_bfloat16_loses_no_more_than_unfrozen(name: str) -> None:
    size = ca.model_entry(name).image_size
    model = ready(ca.create_model(name), ca.create_model(name).in_channels, size, size).float()
    frozen = freeze(model)
    x = torch.randn(4, model.in_channels, size, size).bfloat16()
    expected = model(x.float())
    logits = [network.bfloat16()(x) for network in (model, frozen, saved_and_loaded(frozen))]
    assert all(result.dtype == torch.bfloat16 for result in logits)
    unfrozen, *others = ((result.float() - expected).norm() / expected.norm() for result in logits)
    assert max(others) < 0.02 + 1.5 * unfrozen < 0.3


@pytest.mark.skipif(not cpu.build_library() or not cpu.STATE.multiplies_bfloat16, reason="no products of bfloat16")
@pytest.mark.parametrize("autocasts", [False, True])
def test_slices_in_bfloat16_have_their_kernel(autocasts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = mock.Mock(wraps=slice_convolution._call)
    monkeypatch.setattr(slice_convolution, "_call", calls)
    model = ready(ca.create_model("a_p4cnn"), 1, 28, 28).float()
    x, network = torch.randn(2, 1, 28, 28, dtype=torch.float32), freeze(model)
    if not autocasts:
        x, network = x.bfloat16(), network.bfloat16()
    units = [module for module in network.modules() if isinstance(module, FrozenSliceConv2d)]
    with memory_format("channels_last"), torch.autocast("cpu", torch.bfloat16, enabled=autocasts), torch.no_grad():
        network(x)
    assert len(units) > 0
    assert calls.call_count == len(units)
    assert {call.args[1][0].dtype for call in calls.call_args_list} == {torch.bfloat16}


@pytest.mark.parametrize("name", ["a_p4cnn", "a_p4cnn:attention=output"])
def test_maps_of_another_type_are_refused_in_every_format(name: str) -> None:
    frozen = freeze(ready(ca.create_model(name), 1, 28, 28).float())
    unit = next(module for module in frozen.modules() if isinstance(module, FrozenForm))
    maps = torch.randn(2, 40, 12, 12).bfloat16() if name == "a_p4cnn" else torch.randn(2, 1, 28, 28).bfloat16()
    for layout in ("planes", "channels_last"):
        with memory_format(layout), torch.no_grad(), pytest.raises(RuntimeError, match="type"):
            unit(maps)


@pytest.mark.parametrize(
    ("name", "constant", "number"),
    [("a_p4cnn", "matrices", 7), ("p4cnn:attention=gate", "spatial", 7), ("e4cnn", "filters.weight", 6)],
)
def test_copies_keep_the_operators_and_traces_are_plain_torch(name: str, constant: str, number: int) -> None:
    model = ready(ca.create_model(name, width=4), 1, 28, 28)
    frozen = freeze(model)
    x = torch.randn(2, 1, 28, 28)
    copied = copy.deepcopy(frozen)
    units = [name for name, module in frozen.named_modules() if isinstance(module, FrozenForm)]
    assert len(units) == number
    assert all(isinstance(copied.get_submodule(name), FrozenForm) for name in units)
    assert torch.equal(copied(x), frozen(x))
    frozen.get_submodule(units[0]).state_dict()[constant].zero_()
    assert not torch.equal(copied(x), frozen(x))
    traced = torch.fx.symbolic_trace(copied)
    check_is_plain_torch(traced)
    torch.testing.assert_close(traced(x), model(x), rtol=1e-11, atol=1e-11)
    program = torch.export.export(copied, (x,))
    assert "coattend" not in str(program.graph)
    torch.testing.assert_close(program.module()(x), model(x), rtol=1e-11, atol=1e-11)


def test_filters_that_are_generated_after_another_norm_freeze() -> None:
    model = ready(ca.create_model("e4cnn:width=4"), 1, 28, 28)
    layer = model.stages[0].layer2.conv
    layer.norm = ca.nn.GroupInstanceNorm2d(4, affine=True).double().eval()
    layer.act = nn.Tanh().eval()
    x = torch.randn(2, 1, 28, 28)
    frozen = freeze(model)
    assert sum(isinstance(module, nn.InstanceNorm3d) for module in frozen.modules()) == 1
    torch.testing.assert_close(frozen(x), model(x), rtol=1e-11, atol=1e-11)


def test_the_original_is_left_alone_and_shares_nothing() -> None:
    model = ready(ca.create_model("p4cnn:width=3"), 1, 28, 28)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    frozen = freeze(model)
    assert not any(p.requires_grad for p in frozen.parameters())
    for tensor in frozen.state_dict().values():
        tensor.zero_()
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


class Shy(ca.nn.CoAttention):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


class Gate(ca.nn.PoseAttention):
    def __init__(self, channels: int, group: str) -> None:
        super().__init__(channels, group)
        self.weight = nn.Parameter(torch.randn(channels))

    def mask(self, x: Tensor) -> Tensor:
        batch, channels, order, height, width = x.shape
        rows = x.reshape(batch * channels, order, height * width)
        scaled = self.weight.repeat(batch)[:, None, None] * (rows - rows.mean(1, keepdim=True))
        return scaled.sigmoid().view(x.shape)


class Undecided(Gate):
    def mask(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class Halved(ca.nn.PoseAttention):
    def mask(self, x: Tensor) -> Tensor:
        return torch.full_like(x, 0.5)

    def freeze(self, builder: Builder, value: Value) -> Value:
        return Value(builder.call(torch.mul, builder.original(value), 0.5))


class Strange(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class Paired(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Bilinear(1, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.both(x, x)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (ca.create_model("p4cnn:width=2"), "RotatedMnistNet is in training mode.*call model.eval"),
        (nn.Sequential(Undecided(2, group="p4")).eval(), r"cannot trace Undecided \(0\)"),
        (
            nn.Sequential(Strange()).eval(),
            r"could not trace the forward of Sequential: .*[a-z]\. Its control flow must not",
        ),
        (None, "freeze expects a network, an nn.Module, got NoneType"),
        (nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False)).eval(), "norm 0: it has no running statistics"),
        (nn.Sequential(Paired()).eval(), r"one tensor, but Bilinear \(0.both\) is called with 2 arguments"),
    ],
)
def test_what_cannot_be_frozen_is_named(model: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        freeze(model)


def inside_convolutions(attention: nn.Module) -> list[nn.Module]:
    inside, last = ca.nn.SliceCoAttentiveConv2d(1, 2, 3, "p4"), ca.nn.ProjectionConv2d(1, 8, 3, "p4", attention=True)
    for layer in (inside, last):
        layer.attention = attention
    return [nn.Sequential(layer).eval() for layer in (inside, last)]


class Half(nn.Identity):
    def forward(self, x: Tensor) -> Tensor:
        return x / 2


def test_a_module_instead_of_an_attention_is_frozen_by_its_rule_or_refused() -> None:
    x = torch.randn(3, 1, 4, 9, 8)
    for model in inside_convolutions(nn.Identity()):
        torch.testing.assert_close(freeze(model)(x), model(x), rtol=1e-12, atol=1e-12)
    for replacement, message in ((Strange(), "how Strange"), (Half(), "what Half")):
        for model in inside_convolutions(replacement):
            with pytest.raises(ValueError, match=rf"freeze does not know {message} \(0\.attention\)"):
                freeze(model)


def assigned() -> ca.nn.CoAttention:
    attention = ca.nn.CoAttention(8, group="p4")
    attention.mask = lambda x: (x > 0).to(x)
    attention.forward = lambda x: x.relu()
    return attention


@pytest.mark.parametrize("make", [lambda: Shy(8, group="p4"), lambda: Gate(8, group="p4"), assigned])
def test_an_attention_without_a_rule_is_traced(make: Callable[[], ca.nn.PoseAttention]) -> None:
    x = torch.randn(3, 1, 4, 9, 8)
    for model in (*inside_convolutions(make()), nn.Sequential(ca.nn.GroupConv2d(1, 8, 3, "p4"), make()).eval()):
        frozen = freeze(model)
        torch.testing.assert_close(frozen(x), model(x), rtol=1e-12, atol=1e-12)
        assert "coattend" not in frozen.code
        outputs = frozen_with_outputs(model, Builder(masks=True))(x)
        (mask,) = ca.attention_masks(model, x).values()
        torch.testing.assert_close(outputs[-1], mask, rtol=1e-12, atol=1e-12)


def test_an_attention_with_a_rule_of_its_own() -> None:
    model = nn.Sequential(ca.nn.GroupConv2d(1, 8, 3, "p4"), Halved(8, group="p4")).eval()
    x = torch.randn(3, 1, 4, 9, 8)
    torch.testing.assert_close(freeze(model)(x), model(x), rtol=1e-12, atol=1e-12)
    assert "tables" not in freeze(model).code


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * (2 if x.ndim == 5 else 3)


def test_a_rule_for_a_layer_of_ones_own() -> None:
    def rule(layer: Doubled, builder: Builder, name: str, value: Value) -> Value:
        return Value(builder.call(torch.mul, value.node, 2), value.poses)

    freeze_layer.register(Doubled, rule)
    check(nn.Sequential(ca.nn.LiftingConv2d(1, 2, 3, group="p4"), Doubled(), ca.nn.GroupPool("p4")), 1, 6, 6)


def test_graphs_of_unfrozen_networks_give_features_and_gradients() -> None:
    model = ca.create_model("a_p4cnn:width=2,attention=output")
    graph = LayerTracer().trace(model)
    maps = next(node for node in graph.nodes if node.target == "stages.0.layer2.conv")
    (output,) = (node for node in graph.nodes if node.op == "output")
    output.args = ((output.args[0], maps),)
    traced = torch.fx.GraphModule(model, graph)
    x = torch.randn(2, 1, 28, 28)
    logits, features = traced.eval()(x)
    assert torch.equal(logits, model.eval()(x))
    assert features.shape == (2, 2, 4, 24, 24)
    logits.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


class Standardized(nn.Conv2d):
    """Another convolution by the same forward."""

    def _conv_forward(self, images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(images, weight - weight.mean((1, 2, 3), keepdim=True), bias)


COMPUTED = {
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(1, 4, 3)),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Conv2d(1, 4, 3)),
    "standardized": lambda: Standardized(1, 4, 3),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_norms_after_computed_weights(name: str) -> None:
    """The weight of such a layer is a result, so that a norm cannot be folded into it."""
    model = ready(nn.Sequential(COMPUTED[name](), nn.BatchNorm2d(4)), 1, 9, 9)
    x = torch.randn(2, 1, 9, 9)
    expected, frozen = model(x), freeze(model)
    torch.testing.assert_close(frozen(x), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(saved_and_loaded(frozen)(x), expected, rtol=1e-10, atol=1e-12)
    assert torch.equal(model(x), expected)


def test_weights_that_hooks_compute_are_refused_until_they_are_permanent() -> None:
    model = nn.Sequential(prune.random_unstructured(nn.Conv2d(1, 4, 3), "weight", 0.5), nn.BatchNorm2d(4)).eval()
    with pytest.raises(ValueError, match=r"Conv2d \(0\) with a hook; remove it, or make .*prune.remove"):
        freeze(model)
    prune.remove(model[0], "weight")
    x = torch.randn(2, 1, 9, 9)
    torch.testing.assert_close(freeze(model)(x), model(x), rtol=1e-10, atol=1e-12)


HOOKED = {
    "conv": lambda: ca.nn.LiftingConv2d(2, 4, 3, "p4"),
    "plain conv": lambda: nn.Conv2d(2, 4, 3),
    "relu": nn.ReLU,
    "identity": nn.Identity,
    "root": nn.Sequential,
}


@pytest.mark.parametrize("name", HOOKED)
def test_what_changes_a_layer_from_outside_is_not_dropped(name: str) -> None:
    layer = HOOKED[name]().eval()
    model = layer if name == "root" else nn.Sequential(layer).eval()
    handle = layer.register_forward_hook(lambda module, inputs, output: 2 * output)
    with pytest.raises(ValueError, match="with a hook"):
        freeze(model)
    handle.remove()
    freeze(model)
    layer.forward = lambda x: 2 * x
    with pytest.raises(ValueError, match="with a forward of its own"):
        freeze(model)


@pytest.mark.parametrize("place", ["cpu", "meta"])
def test_norms_and_tables_have_the_type_and_device_of_the_layer(place: str) -> None:
    layers = [
        ca.nn.LiftingConv2d(2, 4, 3, "p4"), ca.nn.GroupInstanceNorm2d(4, affine=True), ca.nn.GroupGroupNorm2d(2, 4),
        ca.nn.SliceCoAttentiveConv2d(4, 4, 3, "p4", score="gate"),
    ]  # fmt: skip
    model = nn.Sequential(*layers).double().eval()
    x = torch.randn(2, 2, 9, 9, dtype=torch.float64)
    if place == "cpu":
        torch.testing.assert_close(freeze(model)(x), model(x), rtol=1e-10, atol=1e-12)
    else:
        frozen = freeze(model.to("meta"))
        assert {tensor.device.type for tensor in (*frozen.parameters(), *frozen.buffers())} == {"meta"}
