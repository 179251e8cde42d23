"""The three convolutions: against slow loops, and equivariant for every element of every exact group."""

from __future__ import annotations

import pytest
import torch

import coattend as ca
from tests import oracles
from tests.example_groups import EXACT

nn = ca.nn
GEOMETRIES = [
    {},
    {"padding": 1},
    {"padding": 2, "padding_mode": "reflect"},
    {"padding": 1, "padding_mode": "replicate"},
    {"padding": 2, "padding_mode": "circular"},
    {"padding": 2, "dilation": 2},
    {"groups": 2, "padding": 1},
    {"bias": False},
]


def layers(group: ca.FiniteGroup, kernel_size: int, **geometry: object) -> list[torch.nn.Module]:
    made = [
        nn.LiftingConv2d(2, 4, kernel_size, group, **geometry),
        nn.GroupConv2d(2, 4, kernel_size, group, **geometry),
        nn.ProjectionConv2d(2, 4, kernel_size, group, **geometry),
        nn.ProjectionConv2d(2, 4, kernel_size, group, attention=True, **geometry),
        nn.SliceCoAttentiveConv2d(2, 4, kernel_size, group, **geometry),
    ]
    for layer in made:
        for parameter in layer.parameters():
            torch.nn.init.normal_(parameter)
    return made


def example(layer: torch.nn.Module, group: ca.FiniteGroup, size: tuple[int, int]) -> torch.Tensor:
    return torch.randn(2, 2, *size) if isinstance(layer, nn.LiftingConv2d) else torch.randn(2, 2, group.order, *size)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("kernel_size", [1, 3, 4, 5])
@pytest.mark.parametrize("size", [(11, 11), (10, 13)])
def test_every_layer_commutes_with_every_element(name: str, kernel_size: int, size: tuple[int, int]) -> None:
    G = ca.get_group(name)
    for geometry in GEOMETRIES:
        for layer in layers(G, kernel_size, **geometry):
            ca.assert_equivariant(layer, example(layer, G, size), G, tol=1e-12)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("kernel_size", [1, 3, 4, 5])
@pytest.mark.parametrize("stride", [2, 3])
def test_strides_commute_exactly_where_they_divide(name: str, kernel_size: int, stride: int) -> None:
    G, padding = ca.get_group(name), kernel_size // 2
    for extra, other in ((0, 3), (2, 2)):
        size = kernel_size - 2 * padding + stride * (5 + extra), kernel_size - 2 * padding + stride * (5 + other)
        for layer in layers(G, kernel_size, stride=stride, padding=padding):
            ca.assert_equivariant(layer, example(layer, G, size), G, tol=1e-12)
            off = size[0] + 1, size[1] + 1
            errors = ca.equivariance_error(layer, example(layer, G, off), G)
            assert G.order == 1 or max(errors.values()) > 0.1


@pytest.mark.parametrize("name", ["C4", "D4", "D2"])
@pytest.mark.parametrize(
    ("kernel_size", "geometry"),
    [(1, {}), (3, {"padding": 1}), (4, {"stride": 2}), (3, {"dilation": 2, "padding": 2}), (5, {"padding": 1})],
)
def test_equals_the_slow_loops(name: str, kernel_size: int, geometry: dict[str, int]) -> None:
    G = ca.get_group(name)
    tables = (G.product, G.inverse, G.planar)
    lift, conv, project, attentive, sliced = layers(G, kernel_size, **geometry)
    image, map_ = torch.randn(1, 2, 6, 8), torch.randn(1, 2, G.order, 6, 8)

    def arrays(layer: torch.nn.Module) -> list:
        return [p.detach().numpy() for p in (layer.weight, layer.bias)]

    sliced_attention = sliced.attention.weight.detach().numpy().reshape(4, G.order, G.order)
    for ours, theirs in (
        (lift(image), oracles.lift(image.numpy(), *arrays(lift), *tables, **geometry)),
        (conv(map_), oracles.group_conv(map_.numpy(), *arrays(conv), *tables, **geometry)),
        (project(map_), oracles.project(map_.numpy(), *arrays(project), *tables, **geometry)),
        (
            attentive(map_),
            oracles.project(
                map_.numpy(), *arrays(attentive), *tables, attentive.attention.weight.detach().numpy(), **geometry
            ),
        ),
        (sliced(map_), oracles.slice_conv(map_.numpy(), *arrays(sliced), sliced_attention, *tables, **geometry)),
    ):
        torch.testing.assert_close(ours, torch.tensor(theirs), rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("name", ["C4", "D4"])
def test_channel_groups_equal_separate_layers(name: str) -> None:
    G = ca.get_group(name)
    for kind, options in (
        (nn.LiftingConv2d, {}),
        (nn.GroupConv2d, {}),
        (nn.ProjectionConv2d, {}),
        (nn.ProjectionConv2d, {"attention": True}),
        (nn.SliceCoAttentiveConv2d, {}),
    ):
        whole = kind(4, 6, 3, G, groups=2, **options)
        x = torch.randn(2, 4, 7, 7) if kind is nn.LiftingConv2d else torch.randn(2, 4, G.order, 7, 7)
        halves = []
        for half in range(2):
            part = kind(2, 3, 3, G, **options)
            state = whole.state_dict()
            part.load_state_dict({k: v.chunk(2)[half] for k, v in state.items()})
            halves.append(part(x.chunk(2, dim=1)[half]))
        torch.testing.assert_close(whole(x), torch.cat(halves, dim=1))


def test_a_sum_pooled_group_convolution_is_a_projection_with_the_effective_weight() -> None:
    """networks: W_eff = sum_t rot(U[t], -t); the pooled layer is an over-parametrised projection."""
    for name in ("C4", "D4"):
        G = ca.get_group(name)
        conv = nn.GroupConv2d(3, 5, 3, G, bias=False)
        project = nn.ProjectionConv2d(3, 5, 3, G, bias=False)
        with torch.no_grad():
            back = [ca.groups.transform_image(conv.weight[:, :, t], G, int(G.inverse[t])) for t in G.elements]
            project.weight.copy_(sum(back))
        x = torch.randn(2, 3, G.order, 7, 9)
        torch.testing.assert_close(nn.GroupPool(G, "sum")(conv(x)), project(x), rtol=1e-12, atol=1e-12)


def test_initialisation_has_the_documented_spread() -> None:
    conv = nn.GroupConv2d(32, 64, 3, "p4")
    assert abs(conv.weight.std().item() * (32 * 4 * 9) ** 0.5 - 1) < 0.02
    assert abs(nn.LiftingConv2d(32, 256, 3, "p4").weight.std().item() * (32 * 9) ** 0.5 - 1) < 0.02
    assert abs(nn.ProjectionConv2d(32, 256, 3, "p4").weight.std().item() * (32 * 4 * 9) ** 0.5 - 1) < 0.02
    assert (conv.bias == 0).all()
    conv.reset_parameters(std=0.035)
    assert abs(conv.weight.std().item() / 0.035 - 1) < 0.02


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["D4", "C8"])
def test_dtypes_and_channels_last(name: str, dtype: torch.dtype) -> None:
    G = ca.get_group(name)
    lift, conv = nn.LiftingConv2d(3, 4, 3, G).to(dtype), nn.GroupConv2d(4, 4, 3, G).to(dtype)
    project = nn.ProjectionConv2d(4, 2, 3, G, attention=True).to(dtype)
    x = torch.randn(2, 3, 9, 8, dtype=dtype)
    for tail in (conv, project):
        y = tail(lift(x))
        assert y.dtype == dtype
        last = tail(lift(x.to(memory_format=torch.channels_last)))
        torch.testing.assert_close(last, y)
        rule = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.05}[dtype]
        errors = ca.equivariance_error(torch.nn.Sequential(lift, tail), x, G)
        assert max(errors[g] for g in G.exact_elements) < rule


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_named_paddings(padding: str) -> None:
    layer = nn.LiftingConv2d(1, 2, 5, "p4", padding=padding, dilation=2)
    assert layer(torch.randn(1, 1, 12, 13)).shape[-2:] == ((12, 13) if padding == "same" else (4, 5))


def test_a_layer_prints_as_a_signature() -> None:
    assert repr(nn.GroupConv2d(10, 20, 3, "p4")) == "GroupConv2d(10, 20, kernel_size=3, stride=1, group=C4)"
    text = repr(nn.LiftingConv2d(1, 2, 5, "C8", stride=2, padding=1, bias=False))
    geometry = "1, 2, kernel_size=5, stride=2, group=C8, padding=1, bias=False, filters=free"
    assert text == f"LiftingConv2d({geometry})"


CONVOLUTIONS = {
    "lift": lambda **o: nn.LiftingConv2d(2, 3, 3, "C8", **o),
    "group": lambda **o: nn.GroupConv2d(2, 3, 3, "C8", **o),
    "restricted": lambda **o: nn.GroupConv2d(16, 16, 3, "C8", relative=(0, 4), **o),
    "projection": lambda **o: nn.ProjectionConv2d(2, 3, 3, "C8", attention=True, **o),
    "slice": lambda **o: nn.SliceCoAttentiveConv2d(2, 3, 3, "C8", **o),
    "cycle": lambda **o: nn.CycleConv2d(2, 3, 3, **o),
    "isotonic": lambda **o: nn.IsotonicConv2d(2, 3, 3, relative=(0, 1), **o),
    "decycle": lambda **o: nn.DecycleConv2d(2, 3, 3, attention=True, **o),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_device_and_dtype_are_those_of_every_tensor(name: str) -> None:
    layer = CONVOLUTIONS[name](device="meta", dtype=torch.float16)
    real = [t for t in (*layer.parameters(), *layer.buffers()) if t.is_floating_point()]
    assert {t.dtype for t in real} == {torch.float16}
    assert all(t.is_meta for t in (*layer.parameters(), *layer.buffers()))
    torch.manual_seed(3)
    single = CONVOLUTIONS[name](dtype=torch.float32)
    torch.manual_seed(3)
    assert repr(CONVOLUTIONS[name](dtype=torch.float32).state_dict()) == repr(single.state_dict())
    shape = (1, single.in_channels, *((single.group.order,) if single.input_on_group else ()), 5, 5)
    assert single(torch.randn(shape, dtype=torch.float32)).dtype == torch.float32
    fresh = CONVOLUTIONS[name](device="meta", dtype=torch.float32).to_empty(device="cpu")
    fresh.load_state_dict(single.state_dict())
    x = torch.randn(shape, dtype=torch.float32)
    assert torch.equal(fresh(x), single(x))


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_equal_pairs_are_single_numbers_and_unequal_ones_are_refused(name: str) -> None:
    pairs = CONVOLUTIONS[name](stride=(2, 2), padding=[1, 1], dilation=(2, 2))
    assert repr(pairs) == repr(CONVOLUTIONS[name](stride=2, padding=1, dilation=2))
    with pytest.raises(ValueError, match=rf"{type(pairs).__name__} expects the same stride along height and width"):
        CONVOLUTIONS[name](stride=(1, 2))
