"""The convolutions as pure functions: equal to the slow loops without tables, and what the layers compute."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

import coattend as ca
from coattend import functional as F
from coattend.functional.layout import Format, memory_format
from coattend.functional.planes import OneChannelConv2d
from tests import oracles

GEOMETRIES: list[dict[str, Any]] = [
    {},
    {"stride": 2, "padding": 1},
    {"padding": 2, "dilation": 2},
    {"stride": (2, 2), "padding": (1, 1)},
    {"groups": 2, "padding": "same"},
    {"padding": 1, "padding_mode": "circular"},
]
LAYERS = {
    "lifting": (ca.nn.LiftingConv2d, F.lifting_conv2d, {}),
    "group": (ca.nn.GroupConv2d, F.group_conv2d, {}),
    "group, restricted": (ca.nn.GroupConv2d, F.group_conv2d, {"relative": (0, 2)}),
    "projection": (ca.nn.ProjectionConv2d, F.projection_conv2d, {}),
    "projection, attention": (ca.nn.ProjectionConv2d, F.projection_conv2d, {"attention": True}),
    "slice": (ca.nn.SliceCoAttentiveConv2d, F.slice_attentive_conv2d, {}),
    "slice, restricted": (ca.nn.SliceCoAttentiveConv2d, F.slice_attentive_conv2d, {"relative": (1, 2, 3)}),
}


def called(name: str, layer: torch.nn.Module, x: Tensor, geometry: dict[str, Any]) -> Tensor:
    """The function without tables, with the parameters of a layer."""
    _, function, options = LAYERS[name]
    arguments = dict(geometry)
    if "relative" in options:
        arguments["relative"] = options["relative"]
    if getattr(layer, "attention", None) is not None:
        arguments["attention"] = layer.attention.weight
    return function(x, layer.weight, layer.bias, layer.group, **arguments)


@pytest.mark.parametrize("group", ["p4", "p4m", "C8"])
@pytest.mark.parametrize("name", LAYERS)
def test_functions_compute_their_tables_themselves(name: str, group: str) -> None:
    kind, _, options = LAYERS[name]
    for geometry in GEOMETRIES:
        layer = kind(16, 16, 3, group, **options, **geometry)
        torch.nn.init.normal_(layer.bias)
        shape = (2, 16, 8, 8) if name == "lifting" else (2, 16, layer.group.order, 8, 8)
        x = torch.randn(shape)
        y = called(name, layer, x, geometry)
        torch.testing.assert_close(y, layer(x), rtol=1e-12, atol=1e-12)
        rotated = ca.groups.transform_image(x, layer.group, 1) if name == "lifting" else None
        assert rotated is None or not torch.allclose(called(name, layer, rotated, geometry), y)


@pytest.mark.parametrize("name", ["C4", "D4"])
def test_equals_the_slow_loops(name: str) -> None:
    G = ca.get_group(name)
    x, weight, bias = torch.randn(1, 2, G.order, 5, 5), torch.randn(2, 2, G.order, 3, 3), torch.randn(2)
    vectors = torch.randn(2 * G.order, G.order)
    arrays = x.numpy(), weight.numpy(), bias.numpy()
    tables = (G.product, G.inverse, G.planar)
    expected = torch.tensor(oracles.group_conv(*arrays, *tables, padding=1))
    torch.testing.assert_close(F.group_conv2d(x, weight, bias, G, padding=1), expected)
    expected = torch.tensor(oracles.slice_conv(*arrays, vectors.view(2, G.order, G.order).numpy(), *tables, padding=1))
    torch.testing.assert_close(F.slice_attentive_conv2d(x, weight, bias, G, vectors, padding=1), expected)


def test_relative_poses_belong_to_the_slices_in_the_order_given() -> None:
    G, x, weight = ca.cyclic(4), torch.randn(1, 16, 4, 5, 5), torch.randn(16, 16, 2, 3, 3)
    whole = torch.zeros(16, 16, 4, 3, 3)
    whole[:, :, [3, 1]] = weight
    expected = F.group_conv2d(x, whole, None, G)
    torch.testing.assert_close(F.group_conv2d(x, weight, None, G, relative=(3, 1)), expected)
    vectors = torch.zeros(32, 4)  # of a mask that is 1 everywhere
    torch.testing.assert_close(F.slice_attentive_conv2d(x, weight, None, G, vectors, relative=(3, 1)), expected)


def test_attention_may_be_a_function() -> None:
    G, x, weight = ca.cyclic(4), torch.randn(1, 2, 4, 5, 5), torch.randn(3, 2, 3, 3)
    plain = F.projection_conv2d(x, weight, None, G)
    torch.testing.assert_close(F.projection_conv2d(x, weight, None, G, attention=lambda y: y), plain)
    torch.testing.assert_close(F.projection_conv2d(x, weight, None, G, attention=lambda y: 2 * y), 2 * plain)


@pytest.mark.parametrize("name", LAYERS)
def test_filters_of_a_layer_are_those_of_a_plain_convolution(name: str) -> None:
    """What exports and other readers rely on."""
    kind, _, options = LAYERS[name]
    layer = kind(16, 16, 3, "p4m", groups=2, **options)
    torch.nn.init.normal_(layer.bias)
    bank, groups, bias = layer.filters(), layer.filter_groups, layer.expanded_bias()
    planes = 16 if name == "lifting" else 16 * 8
    read = len(layer.input_planes) if getattr(layer, "in_blocks", False) else planes
    assert bank.shape[1] * groups == read
    assert bias is None or len(bias) == len(bank)
    if getattr(layer, "attention", None) is not None or getattr(layer, "in_blocks", False):
        return
    x = torch.randn(1, planes, 6, 6)
    y = torch.nn.functional.conv2d(x, bank, bias, groups=groups)
    expected = layer(x if name == "lifting" else x.unflatten(1, (16, 8)))
    torch.testing.assert_close(y, expected.reshape(y.shape))


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "k"), [(1, 0, 1, 3), (2, 1, 1, 3), (1, 2, 2, 3), (2, 3, 1, 5)]
)
def test_gradients_of_images_with_one_channel(stride: int, padding: int, dilation: int, k: int) -> None:
    tensors = [torch.randn(shape, requires_grad=True) for shape in ((2, 1, 7, 8), (5, 1, k, k), (5,))]

    def convolve(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return OneChannelConv2d.apply(x, weight, bias, stride, padding, dilation)

    assert torch.autograd.gradcheck(convolve, tensors)
    assert torch.autograd.gradgradcheck(convolve, tensors)


@pytest.mark.parametrize("of_images", [True, False])
@pytest.mark.parametrize("layout", ["planes", "channels_last"])
@pytest.mark.parametrize("precision", ["float32", "autocast"])
def test_one_channel_is_convolved_as_several_are(precision: str, layout: Format, of_images: bool) -> None:
    conv = ca.nn.LiftingConv2d(1, 3, 3, "p4", padding=1).float()
    x = torch.randn(2, 1, 6, 6, dtype=torch.float32, requires_grad=of_images)
    weight, bias = conv.filters(), conv.expanded_bias()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
        with memory_format(layout):
            y = conv(x)
        expected = torch.conv2d(x, weight, bias, padding=1)
    assert "OneChannel" in str(y.grad_fn.next_functions[0][0].name())
    assert y.dtype == expected.dtype
    torch.testing.assert_close(y.flatten(1, 2), expected)
    leaves = [x, conv.weight, conv.bias] if of_images else [conv.weight, conv.bias]
    up = torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad(out.reshape(up.shape), leaves, up, retain_graph=True) for out in (y, expected))
    tolerance = {"rtol": 0.02, "atol": 0.05} if precision == "autocast" else {"rtol": 1e-5, "atol": 1e-5}
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, **tolerance)


def test_nothing_is_hidden_in_the_signatures() -> None:
    functions = [F.lifting_conv2d, F.group_conv2d, F.projection_conv2d, F.slice_attentive_conv2d]
    for kind in (ca.nn.LiftingConv2d, ca.nn.GroupConv2d, ca.nn.ProjectionConv2d, ca.nn.SliceCoAttentiveConv2d,
                 ca.nn.CycleConv2d, ca.nn.IsotonicConv2d, ca.nn.DecycleConv2d):  # fmt: skip
        assert {"device", "dtype"} <= inspect.signature(kind).parameters.keys()
        functions.append(kind)
    for function in functions:
        parameters = inspect.signature(function).parameters.values()
        assert all(p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)
        assert {"stride", "padding", "dilation", "groups", "padding_mode"} <= {p.name for p in parameters}
