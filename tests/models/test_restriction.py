"""Restricted networks are built, saved and loaded like all others."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

import coattend as ca
from coattend.models import group_convolutions, restricted, restricted_poses
from coattend.nn.observe import estimate_norm_statistics


@pytest.mark.parametrize(
    "name", ["a_p4cnn", "p4m_resnet44:blocks=1,width=4", "a_r_nin_x4:width=12", "p4_allcnn:width=8"]
)
def test_a_restricted_network_is_rebuilt_from_its_file(name: str, tmp_path: Path) -> None:
    model = ca.create_model(name)
    layers = list(group_convolutions(model))
    model = restricted(model, {layers[0]: (0, 2), layers[-1]: (3,)})
    model = restricted(model, {layers[0]: (2,)})
    ca.save_model(model, tmp_path / "small.safetensors")
    again = ca.load_model(tmp_path / "small.safetensors")
    assert restricted_poses(again) == {layers[0]: (2,), layers[-1]: (3,)}
    x = torch.randn(2, model.in_channels, 32, 32)
    assert torch.equal(model.eval()(x), again.eval()(x))
    assert again.config == model.config
    assert ca.is_exact(ca.create_model(name), 32) == ca.is_exact(again, 32)


def test_the_model_itself_does_not_change() -> None:
    model = ca.create_model("a_p4cnn:width=4")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    config, random_state = copy.deepcopy(model.config), torch.get_rng_state()
    smaller = restricted(model, (0, 2))
    assert torch.equal(torch.get_rng_state(), random_state)
    assert model.config == config
    assert restricted_poses(model) == {}
    with torch.no_grad():
        for parameter in smaller.parameters():
            parameter.zero_()
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not {id(p) for p in model.parameters()} & {id(p) for p in smaller.parameters()}


def test_the_copy_keeps_everything_else() -> None:
    conv = ca.nn.SliceCoAttentiveConv2d(2, 2, 3, "p4")
    conv.weight.requires_grad_(False)
    calls = []
    conv.register_forward_hook(lambda *_: calls.append(1))
    model = torch.nn.Sequential(conv, ca.nn.GroupBatchNorm2d(2), conv).eval()
    smaller = restricted(model, {"0": (1, 3)})
    assert smaller[0] is smaller[2]  # one layer, used twice
    assert type(smaller[0]) is ca.nn.SliceCoAttentiveConv2d
    assert not smaller.training
    assert not smaller[0].weight.requires_grad
    assert smaller[0].attention.weight.requires_grad
    assert smaller[0].attention.channels == 4
    smaller(torch.randn(1, 2, 4, 7, 7))
    assert len(calls) == 2
    assert restricted(conv, (1,)).relative == (1,)  # a layer alone


def test_a_network_inside_another_module_records_its_poses() -> None:
    model = torch.nn.ModuleDict({"network": ca.create_model("p4cnn:width=4")})
    layer = next(iter(group_convolutions(model)))
    smaller = restricted(model, {layer: (2,)})
    assert smaller["network"].config.options["relative"] == {layer.removeprefix("network."): (2,)}


def test_relative_poses_are_an_option_of_every_network() -> None:
    model = ca.create_model("p4_allcnn:width=8,relative=0-2")
    assert {layer.relative for layer in group_convolutions(model).values()} == {(0, 2)}
    assert {layer.relative for layer in group_convolutions(ca.create_model("p4cnn:relative=1")).values()} == {(1,)}
    assert "relative" not in ca.create_model("p4cnn", relative=range(4)).config.options
    with pytest.raises(ValueError, match="expects relative to hold different elements of C4"):
        ca.create_model("p4cnn:relative=0-4")
    with pytest.raises(ValueError, match=r"no group convolution is called 'conv1'; those of this model are stages\.0"):
        ca.create_model("p4cnn", relative={"conv1": (0,)})


@pytest.mark.parametrize("name", ["a_p4cnn:relative=0-1", "p4_allcnn:width=8,downsample=pool,relative=0-1"])
def test_a_restricted_network_is_invariant(name: str) -> None:
    model = ca.create_model(name)
    x = torch.randn(2, model.in_channels, 28, 28)
    estimate_norm_statistics(model, [x])
    ca.assert_equivariant(model.eval(), x, model.group, tol=1e-12)
