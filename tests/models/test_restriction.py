"""Restricted networks are built, saved and loaded like all others."""

from __future__ import annotations

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
