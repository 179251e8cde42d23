"""Turned filters are kept in evaluation, and never those of another weight."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import coattend as ca
from coattend.functional.layout import memory_format
from coattend.nn._conv_base import PoseConv2d

LAYERS: dict[str, Callable[[], PoseConv2d]] = {
    "lifting": lambda: ca.nn.LiftingConv2d(2, 4, 3, group="p4"),
    "group": lambda: ca.nn.GroupConv2d(2, 4, 3, group="p4m", padding=1),
    "blocks": lambda: ca.nn.GroupConv2d(8, 16, 3, group="p4", relative=(0,)),
    "steerable": lambda: ca.nn.GroupConv2d(2, 4, 5, group="C8", filters="steerable"),
    "own pose": lambda: ca.nn.GroupConv2d(2, 4, 1, group="p4", relative=(0,)),
    "projection": lambda: ca.nn.ProjectionConv2d(2, 4, 3, group="p4"),
    "attentive projection": lambda: ca.nn.ProjectionConv2d(2, 4, 3, group="p4", attention=True),
    "slices": lambda: ca.nn.SliceCoAttentiveConv2d(2, 4, 3, group="p4"),
    "transposed": lambda: ca.nn.GroupConvTranspose2d(2, 4, 2, group="p4m", stride=2),
    "transposed, own pose": lambda: ca.nn.GroupConvTranspose2d(2, 4, 2, group="p4m", stride=2, relative=(0,)),
}
CHANGES: dict[str, Callable[[PoseConv2d], object]] = {
    "in place": lambda layer: layer.weight.mul_(2),
    "past the version counter": lambda layer: layer.weight.data[0].neg_(),
    "one number": lambda layer: layer.weight.data.flatten()[-1].add_(1e-3),
    "new values": lambda layer: layer.load_state_dict({k: v + 1 for k, v in layer.state_dict().items()}),
    "new tensor": lambda layer: setattr(layer, "weight", nn.Parameter(torch.randn_like(layer.weight))),
    "parametrization": lambda layer: parametrizations.weight_norm(layer),
}


@pytest.fixture(params=LAYERS)
def layer(request: pytest.FixtureRequest) -> PoseConv2d:
    return LAYERS[request.param]().eval()


def image_of(layer: PoseConv2d) -> Tensor:
    poses = (layer.group.order,) if layer.input_on_group else ()
    return torch.randn(2, layer.in_channels, *poses, 7, 7)


@torch.no_grad()
def fresh(layer: PoseConv2d, x: Tensor) -> Tensor:
    """The output of a layer in training, in which nothing is kept."""
    layer.train()
    y: Tensor = layer(x)
    layer.eval()
    return y


@torch.no_grad()
def test_filters_are_turned_once(layer: PoseConv2d, monkeypatch: pytest.MonkeyPatch) -> None:
    x, turned = image_of(layer), []
    filters = layer.filters
    monkeypatch.setattr(layer, "filters", lambda: turned.append(1) or filters())
    expected = fresh(layer, x)
    assert not turned
    for _ in range(3):
        assert torch.equal(layer.eval()(x), expected)
    assert len(turned) == (0 if layer.relative == (0,) and layer._cache is None else 1)


@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_a_changed_weight_is_noticed(layer: PoseConv2d, change: str) -> None:
    x = image_of(layer)
    before = layer(x)
    CHANGES[change](layer)
    after = layer(x)
    assert torch.equal(after, fresh(layer, x))
    if change != "parametrization":
        assert not torch.equal(after, before)


@torch.no_grad()
def test_other_precisions_and_formats(layer: PoseConv2d) -> None:
    torch.set_default_dtype(torch.float32)
    layer, x = layer.float(), image_of(layer).float()
    for name in ("planes", "channels_last", "planes"):
        with memory_format(name):
            assert torch.equal(layer(x), fresh(layer, x))
    layer(x)
    y = layer.double()(x.double())
    assert y.dtype == torch.float64
    assert torch.equal(y, fresh(layer, x.double()))


def test_gradients_do_not_meet_cache_filters(layer: PoseConv2d) -> None:
    x = image_of(layer)
    with torch.inference_mode():
        layer(x)
    layer(x).sum().backward()
    assert layer.weight.grad is not None
    assert bool((layer.weight.grad != 0).any())


@torch.no_grad()
def test_copies_and_files_do_not_have_them(layer: PoseConv2d) -> None:
    x = image_of(layer)
    y = layer(x)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other._cache is None
        assert torch.equal(other(x), y)
    layer.train()
    assert layer._cache is None


@torch.no_grad()
def test_other_weights_by_functional_call(layer: PoseConv2d) -> None:
    x = image_of(layer)
    layer(x)
    other = {"weight": torch.randn_like(layer.weight)}
    y = torch.func.functional_call(layer, other, x)
    layer.weight.copy_(other["weight"])
    assert torch.equal(y, fresh(layer, x))


@pytest.mark.parametrize("filters", ["free", "steerable"])
def test_filters_kept_under_autocast_serve_without_it(filters: str) -> None:
    layer = ca.nn.LiftingConv2d(1, 3, 5, "C8", filters=filters).float().eval()
    x = torch.randn(2, 1, 9, 9, dtype=torch.float32)
    with torch.no_grad():
        expected = copy.deepcopy(layer)(x)
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16
        assert torch.equal(layer(x), expected)
