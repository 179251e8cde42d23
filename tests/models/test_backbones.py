"""Backbones for images of 224 x 224: usual sizes over the trivial group, exact over others, matched widths."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import coattend as ca
from coattend.export import check_certificate, export_onnx, freeze
from coattend.models.registry import network_skeleton
from coattend.nn.observe import estimate_norm_statistics, multiply_adds

NAMES = ("coat_resnet18", "coat_resnet34", "coat_resnet50", "coat_convnext_tiny", "coat_convnext_small")
SMALL = {
    "coat_resnet18": "coat_resnet18:width=2,blocks=1,num_classes=5",
    "coat_resnet50": "coat_resnet50:width=1,blocks=1-2-1-1,num_classes=5",
    "coat_convnext_tiny": "coat_convnext_tiny:width=2,blocks=1,num_classes=5,layer_scale=0.5",
}


def settled(name: str) -> ca.models.EquivariantNetwork:
    model = ca.create_model(name)
    estimate_norm_statistics(model, [torch.randn(4, model.in_channels, 64, 64)])
    return model.eval()


def skeleton(name: str, **options: object) -> ca.models.EquivariantNetwork:
    return network_skeleton(ca.model_entry(name), options)


def parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def cost(model: torch.nn.Module) -> int:
    return sum(multiply_adds(model, (3, 224, 224)).values())


@pytest.mark.parametrize(
    ("name", "width", "published", "tolerance", "giga"),
    [
        ("coat_resnet18", 64, 11_689_512, 0.001, 1.81),
        ("coat_resnet34", 64, 21_797_672, 0.001, 3.66),
        ("coat_resnet50", 64, 25_557_032, 0.002, 4.09),
        ("coat_convnext_tiny", 96, 28_589_128, 0, 4.46),
        ("coat_convnext_small", 96, 50_223_688, 0, 8.68),
    ],
)
def test_over_the_trivial_group_they_are_of_the_usual_size(
    name: str, width: int, published: int, tolerance: float, giga: float
) -> None:
    """Convolutions have biases here, and the stem of the residual networks a 6x6 kernel."""
    plain = skeleton(name, group="z2", width=width)
    assert abs(parameters(plain) / published - 1) <= tolerance
    assert abs(cost(plain) / 1e9 - giga) < 0.05


@pytest.mark.parametrize("name", NAMES)
def test_by_default_they_cost_as_much_as_the_plain_network(name: str) -> None:
    plain = skeleton(name, group="z2", width=96 if "convnext" in name else 64)
    assert abs(cost(skeleton(name)) / cost(plain) - 1) < 1e-6
    assert ca.model_entry(name).group == "p4m"


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("coat_resnet18", "p4m"),
        *(pytest.param("coat_resnet18", group, marks=pytest.mark.slow) for group in ("p4", "C8")),
        *(pytest.param("coat_convnext_tiny", group, marks=pytest.mark.slow) for group in ("p4", "p4m", "C8")),
    ],
)
def test_matched_widths(name: str, group: str) -> None:
    width = 16  # of the plain network, small enough to build quickly
    plain = skeleton(name, group="z2", width=width)
    assert abs(parameters(skeleton(name, group=group, width=width, match="params")) / parameters(plain) - 1) < 0.03
    assert abs(cost(skeleton(name, group=group, width=width, match="cost")) / cost(plain) - 1) < 0.01


@pytest.mark.parametrize("options", ["", ",group=p4,attention=output"])
@pytest.mark.parametrize("name", SMALL)
def test_logits_are_invariant_where_32_divides_the_size(name: str, options: str) -> None:
    model = settled(SMALL[name] + options)
    x = torch.randn(2, 3, 64, 96)
    assert model(x).shape == (2, 5)
    assert max(ca.equivariance_error(model, x, model.group).values()) < 1e-11
    assert ca.is_exact(model, 64)
    assert not ca.is_exact(model, 66)


def test_strided_ones_are_exact_at_other_sizes() -> None:
    model = settled(f"{SMALL['coat_resnet18']},downsample=stride")
    assert ca.is_exact(model, 65)
    assert not ca.is_exact(model, 64)


def test_a_plain_one_is_not_invariant() -> None:
    model = settled(f"{SMALL['coat_resnet18']},group=z2")
    assert max(ca.equivariance_error(model, torch.randn(1, 3, 64, 64), "p4").values()) > 1e-2


@pytest.mark.parametrize("name", SMALL)
def test_groups_change_with_the_stages(name: str) -> None:
    model = settled(f"{SMALL[name]},group=D4>C4@2")
    assert model.group == ca.cyclic(4)
    assert max(ca.equivariance_error(model, torch.randn(1, 3, 64, 64), "C4").values()) < 1e-11
    maps = ca.models.FeatureBackbone(model)(torch.randn(1, 3, 64, 64))
    assert [m.shape[2] for m in maps] == [8, 8, 4, 4]
    assert tuple(m.shape[1] for m in maps) == model.feature_channels


@pytest.mark.parametrize("name", SMALL)
def test_features_are_those_that_are_announced(name: str) -> None:
    backbone = ca.create_model(SMALL[name], features_only=True)
    maps = backbone(torch.randn(1, 3, 64, 64))
    assert backbone.feature_reductions == (4, 8, 16, 32)
    assert tuple(m.shape[1] for m in maps) == backbone.feature_channels
    assert [64 // m.shape[-1] for m in maps] == [4, 8, 16, 32]
    assert {m.shape[2] for m in maps} == {8}


@pytest.mark.parametrize("name", SMALL)
def test_freezes(name: str) -> None:
    model = settled(f"{SMALL[name]},group=p4")
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(freeze(model)(x), model(x), rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_files_and_onnx(name: str, tmp_path: Path) -> None:
    model, x = settled(f"{SMALL[name]},group=p4"), torch.randn(2, 3, 64, 64)
    torch.set_default_dtype(torch.float32)
    ca.save_model(model.float(), tmp_path / "model.safetensors")
    assert torch.equal(ca.load_model(tmp_path / "model.safetensors").eval()(x.float()), model(x.float()))
    export_onnx(model, tmp_path / "model.onnx", size=32)
    assert check_certificate(tmp_path / "model.onnx").agrees


@pytest.mark.parametrize("name", SMALL)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    model = ca.create_model(SMALL[name])
    torch.nn.functional.cross_entropy(model(torch.randn(4, 3, 64, 64)), torch.tensor([0, 1, 2, 3])).backward()
    for key, parameter in model.named_parameters():
        if not (key.endswith("conv.bias") and "convnext" not in name):
            assert parameter.grad is not None, key
            assert parameter.grad.any(), key


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("coat_resnet18:width=2-4", "width must be one number or 4, one per stage, got"),
        ("coat_resnet18:blocks=1-2-3", "blocks must be one number or 4"),
        ("coat_resnet18:blocks=0", "blocks must be"),
        ("coat_convnext_tiny:downsample=pool", "can replace stride 2 only"),
        ("coat_convnext_tiny:blocks=0-1-1-1", "blocks must be at least 1"),
    ],
)
def test_wrong_options(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ca.create_model(name)
