"""Networks with every form of attention of this package: names, counts, equivariance, files and exports."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

import coattend as ca
from coattend.export import check_certificate, export_onnx
from coattend.models import network_name
from coattend.nn.observe import attended_convolutions, estimate_norm_statistics
from coattend.train.optimizer import parameter_groups
from coattend.train.recipe import Recipe

FORMS = ("gate", "slice_gate", "pose")
VARIANTS = ("pose,heads=2", "output,heads=2,scale=1", "slice,heads=2,scale=0.5", "output,position=norm,heads=3")
FAMILIES = {
    "p4cnn:width=2": 28,
    "p4cnn:width=2,head=max,group=p4m": 28,
    "p4m_allcnn:width=2,downsample=pool": 32,
    "p4m_resnet44:width=2,blocks=1,downsample=pool": 32,
    "r_nin_x4:width=6": 32,
    "r_resnet20_x4:width=2,blocks=1,downsample=pool": 32,
}


def settled(name: str) -> ca.models.EquivariantNetwork:
    network = ca.create_model(name)
    size = 28 if "cnn:" in name and "all" not in name else 32
    estimate_norm_statistics(network, [torch.randn(4, network.in_channels, size, size)])
    return network.eval()


def count(name: str) -> int:
    return sum(p.numel() for p in ca.create_model(name).parameters())


def test_gates_have_the_parameters_of_the_reference() -> None:
    convolutions = 10 * 9 + 5 * 10 * 10 * 4 * 9 + 10 * 10 * 4 * 16
    norms, biases = 6 * 2 * 10, 6 * 10 + 10
    gate = 2 * (10 * 5) * 4 + 2 * 4 * 7 * 7  # two 1x1 group convolutions, and a 7x7 one from two maps to one
    of_images = 2 * (1 * 1) + 2 * 7 * 7
    assert convolutions + norms + 6 * gate + of_images == 29_462
    assert count("p4cnn:head=max,attention=gate") == 29_462 + biases
    assert count("p4cnn:attention=gate") == count("p4cnn") + 6 * gate + of_images


# Every form in one family, and every family with one form: a family builds all forms in the same way.
@pytest.mark.parametrize(
    ("name", "form"),
    [
        *(("p4cnn:width=2", form) for form in (*FORMS, *VARIANTS)),
        *zip(list(FAMILIES)[1:], itertools.cycle(FORMS), strict=False),
    ],
)
def test_every_family_takes_every_form(name: str, form: str) -> None:
    network = settled(f"{name},attention={form}")
    x = torch.randn(2, network.in_channels, FAMILIES[name], FAMILIES[name])
    ca.assert_equivariant(network, x, network.group, tol=1e-12)
    network.train()(x).square().sum().backward()
    layers = [m for m in network.modules() if isinstance(m, ca.nn.AttentionLayer)]
    assert layers
    assert all(p.grad is not None for layer in layers for p in layer.parameters())
    assert all(any(p.grad.any() for p in layer.parameters()) for layer in layers)
    torch.testing.assert_close(ca.freeze(network.eval())(x), network(x), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("filters", ["free", "steerable", "0-2-2"])
def test_gates_turn_by_the_filters_of_the_network(filters: str) -> None:
    network = settled(f"p4cnn:group=C8,width=2,attention=gate,filters={filters}")
    gates = [m for m in network.modules() if isinstance(m, (ca.nn.GroupGate2d, ca.nn.LiftingGate2d))]
    assert len(gates) == 7
    expected = {"free": "free", "steerable": "steerable", "0-2-2": ca.Rings((0, 2, 2))}[filters]
    assert {gate.spatial.filter_form for gate in gates} == {expected}
    errors = ca.equivariance_error(network, torch.randn(2, 1, 28, 28), network.group)
    assert max(errors[g] for g in network.group.exact_elements) <= 1e-12


def check_claims(path: Path) -> None:
    checked = check_certificate(path)
    assert checked is not None
    assert all(claim.agrees for claim in checked.claims)
    assert max(checked.certificate.equivariance.values()) < 1e-4


@pytest.mark.parametrize("options", ["output,heads=2,scale=1", "output,position=norm"])
def test_certificates_of_variants(options: str, tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    export_onnx(settled(f"p4cnn:attention={options},width=2"), tmp_path / "m.onnx", masks=True)
    check_claims(tmp_path / "m.onnx")


@pytest.mark.parametrize("form", FORMS)
def test_names_files_and_certificates(form: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    torch.set_default_dtype(torch.float32)
    network = settled(f"p4cnn:attention={form},width=2")
    assert network_name(network) == f"p4cnn:attention={form},width=2"
    ca.save_model(network, tmp_path / "m.safetensors")
    x = torch.randn(3, 1, 28, 28)
    assert torch.equal(ca.load_model(tmp_path / "m.safetensors").eval()(x), network(x))
    export_onnx(network, tmp_path / "m.onnx", masks=form != "pose")
    check_claims(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    logits, *masks = session.run(None, {"images": x.numpy()})
    torch.testing.assert_close(torch.tensor(logits), network(x), rtol=1e-4, atol=1e-5)
    for name, mask in zip(session.get_outputs()[1:], masks, strict=True):
        expected = ca.attention_masks(network, x)[name.name.removeprefix("mask:")]
        torch.testing.assert_close(torch.tensor(mask), expected, rtol=1e-4, atol=1e-5)


def test_gates_stand_on_the_inputs_of_convolutions_and_weigh_no_responses() -> None:
    network = ca.create_model("p4cnn:width=2,attention=gate")
    gates = [name for name, m in network.named_modules() if isinstance(m, ca.nn.AttentionLayer)]
    assert gates[0] == "stages.0.layer1.gate"
    assert gates[-1] == "head.layer7.conv.gate"
    x = torch.randn(2, 1, 28, 28)
    assert attended_convolutions(network, x) == {}
    assert set(ca.attention_masks(network, x)) == set(gates[1:])
    inside = ca.create_model("p4cnn:width=2,attention=slice_gate")
    assert attended_convolutions(inside, x)["stages.0.layer2.conv.attention"] == "stages.0.layer2.conv"


def test_relative_poses_are_those_of_the_convolutions_alone() -> None:
    for form in (*FORMS, "slice,heads=2"):
        network = ca.create_model(f"p4cnn:width=2,attention={form},relative=0-2")
        assert all(not m.spatial.is_restricted for m in network.modules() if isinstance(m, ca.nn.GroupGate2d))
        assert network.stages[0].layer2.conv.relative == (0, 2)
        ca.assert_equivariant(network, torch.randn(2, 1, 28, 28), "p4", tol=1e-12)


def test_the_parameters_of_gates_are_those_of_attention() -> None:
    network = ca.create_model("p4cnn:width=2,attention=gate")
    recipe = Recipe("quick", weight_decay=0.1, attention_lr=3.0)
    of_gates = {id(p) for m in network.modules() if isinstance(m, ca.nn.AttentionLayer) for p in m.parameters()}
    for group in parameter_groups(network, recipe):
        is_gate = {id(p) in of_gates for p in group["params"]}
        assert is_gate == {group["lr"] == 3 * recipe.lr}
        assert not (is_gate == {True} and group["weight_decay"])


def test_a_class_that_derives_from_co_attention_is_built_with_channels_and_group() -> None:
    class Own(ca.nn.CoAttention):
        pass

    network = ca.create_model("p4cnn:width=2", attention=Own)
    assert sum(type(m) is Own for m in network.modules()) == 7


def test_impossible_combinations_are_answered() -> None:
    with pytest.raises(ValueError, match="attention=gate acts on the input of the convolution, so position=norm is"):
        ca.create_model("p4cnn:attention=gate,position=norm")
    with pytest.raises(ValueError, match="scale: PoseSelfAttention has no such option"):
        ca.create_model("p4cnn:attention=pose,scale=2")
    with pytest.raises(ValueError, match="PoseSelfAttention expects heads that divide its 10 channels, got 3"):
        ca.create_model("p4cnn:attention=pose,heads=3")
    with pytest.raises(ValueError, match="CoAttention expects scale to be a number of at least 0, got 'x'"):
        ca.create_model("p4cnn:attention=output,scale=x")
    with pytest.raises(ValueError, match="attention=slice_gate acts inside the convolution, so position=relu is"):
        ca.create_model("p4cnn:attention=slice_gate,position=relu")
    with pytest.raises(ValueError, match="structure and heads: GroupGate2d has no such option"):
        ca.create_model("p4cnn:attention=gate,structure=full,heads=2")
