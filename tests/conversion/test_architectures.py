"""Networks with the names of torchvision's and timm's become the mean over all poses, exactly."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import coattend as ca
from tests.conversion.architectures import FULL, NARROW
from tests.conversion.orbit_oracle import assert_orbit_mean, with_statistics

SIZES = {"vgg16": 32, "convnext_tiny": 32, "unet": 32, "vit": 32}


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("group", ["p4", "p4m"])
def test_logits_are_the_mean_over_all_poses(name: str, group: str) -> None:
    size = SIZES.get(name, 33)
    x = torch.randn(2, 3, size, size, dtype=torch.float64)
    model = with_statistics(NARROW[name]().double(), x)
    network = ca.equivariantize(model, group, size=size)
    assert network.difference is not None
    assert network.difference < 1e-11
    assert_orbit_mean(model, network, x, group, 1e-11)


@pytest.mark.parametrize("name", NARROW)
def test_logits_in_float32(name: str) -> None:
    size = SIZES.get(name, 33)
    x = torch.randn(2, 3, size, size, dtype=torch.float32)
    # Statistics of few images make a network whose own float32 logits differ from those in float64 by more than 1e-5.
    model = with_statistics(NARROW[name]().float(), torch.randn(32, 3, size, size, dtype=torch.float32))
    network = ca.equivariantize(model, "p4m", size=size, verify=False)
    assert_orbit_mean(model, network, x, "p4m", 1e-5)


@pytest.mark.parametrize("name", [name for name in NARROW if name not in ("vgg16", "vit")])
def test_every_convolution_becomes_one_of_the_group(name: str) -> None:
    model = NARROW[name]()
    network = ca.equivariantize(model, "p4", size=SIZES.get(name, 33), verify=False)
    assert network.in_own_frames == ()
    assert not any(isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)) for m in network.modules())
    names = {n for n, m in model.named_modules() if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d))}
    assert names <= {n.removeprefix("network.") for n, _ in network.named_modules()}


@pytest.mark.parametrize("name", FULL)
def test_the_networks_are_those_of_torchvision(name: str) -> None:
    build, count, tensor, shape = FULL[name]
    with torch.device("meta"):
        model = build()
    assert sum(p.numel() for p in model.parameters()) == count
    assert model.state_dict()[tensor].shape == shape


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size"), [("resnet18", 225), ("convnext_tiny", 224), ("efficientnet_b0", 225)])
def test_networks_of_full_size(name: str, size: int) -> None:
    x = torch.randn(1, 3, size, size, dtype=torch.float32)
    model = with_statistics(FULL[name][0]().float(), torch.cat([x, x.flip(-1)]))
    network = ca.equivariantize(model, "p4m", size=size, verify=False)
    assert_orbit_mean(model, network, x, "p4m", 1e-5)


def test_attention_and_cross_pose_filters_start_without_effect() -> None:
    x = torch.randn(2, 3, 33, 33, dtype=torch.float64)
    model = with_statistics(NARROW["resnet18"]().double(), x)
    network = ca.equivariantize(model, "p4m", size=33, relative=None, attention=True)
    assert_orbit_mean(model, network, x, "p4m", 1e-11)
    assert len(ca.attention_masks(network, x)) == 20
    conv = network.network.get_submodule("layer1.0.conv1")
    assert conv.weight.shape == (4, 4, 8, 3, 3)
    torch.nn.init.normal_(conv.weight, std=0.1)
    attention = network.network.get_submodule("layer1.0.conv1_attention")
    torch.nn.init.normal_(attention.weight)
    assert (network(x) - ca.equivariantize(model, "p4m", size=33)(x)).abs().max() > 1e-3  # they have an effect now
    ca.assert_equivariant(network, x, "p4m", tol=1e-11)


def test_relative_poses_by_layer() -> None:
    network = ca.equivariantize(NARROW["resnet18"](), "p4", size=33, relative={"layer4.*": None, "layer3.*": (0, 2)})
    poses = {
        name: network.network.get_submodule(name).relative
        for name in ("layer2.0.conv1", "layer3.0.conv1", "layer4.0.conv1")
    }
    assert list(poses.values()) == [(0,), (0, 2), (0, 1, 2, 3)]


def test_gradients_reach_the_filters_of_all_relative_poses() -> None:
    network = ca.equivariantize(NARROW["resnet18"](), "p4", size=33, relative=None).train()
    network(torch.randn(2, 3, 33, 33)).square().sum().backward()
    gradients = [p.grad for n, p in network.named_parameters() if n.endswith("conv2.weight")]
    assert all(gradient is not None and bool((gradient.abs().amax((0, 1, 3, 4)) > 0).all()) for gradient in gradients)
