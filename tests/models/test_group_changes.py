"""Networks whose group changes with depth: planes and cost stay, exactness is that of the last group, files know it."""

# ruff: noqa: E501 (one mistake, one line)

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import coattend as ca
from coattend.export import check_certificate, export_onnx, freeze
from coattend.groups import GroupSequence
from coattend.models import network_name
from coattend.nn.observe import estimate_norm_statistics, multiply_adds

NETWORKS = [
    ("p4cnn:group=D4>C4@3,width=3", "C4", 28),
    ("a_p4cnn:group=D4>D2@2>C2@5,width=2,attention=output,head=max", "C2", 28),
    ("dren:group=D4>C4 clockwise@6,width=2", "C4 clockwise", 28),
    ("p4m_resnet44:group=D4>D2>C2,width=2,blocks=1,downsample=pool", "C2", 16),
    ("r_resnet20_x4:group=D4>C4@2,width=2,blocks=2,downsample=pool", "C4", 16),
]


def settled(name: str, size: int) -> torch.nn.Module:
    model = ca.create_model(name)
    estimate_norm_statistics(model, [torch.randn(4, model.in_channels, size, size)])
    return model.eval()


@pytest.mark.parametrize(("name", "last", "size"), NETWORKS)
def test_networks_are_exact_for_the_last_group(name: str, last: str, size: int) -> None:
    model = settled(name, size)
    assert model.group == ca.get_group(last)
    x = torch.randn(2, model.in_channels, size, size)
    assert max(ca.equivariance_error(model, x, last).values()) < 1e-12
    assert max(ca.equivariance_error(model, x, "D4").values()) > 1e-4
    assert ca.is_exact(model, size)
    assert "exactly equivariant" in ca.models.exactness_line(model, (size, size))
    frozen = freeze(model)
    torch.testing.assert_close(frozen(x), model(x), rtol=1e-10, atol=1e-10)


def test_planes_and_multiply_adds_stay_the_same() -> None:
    whole = ca.create_model("p4cnn:group=D4,width=4,head=max")
    changing = ca.create_model("p4cnn:group=D4>C4@3,width=4,head=max")
    assert sum(multiply_adds(whole, (1, 28, 28)).values()) > sum(multiply_adds(changing, (1, 28, 28)).values())
    ours, theirs = (multiply_adds(m, (1, 28, 28)) for m in (changing, whole))
    assert {k: v for k, v in ours.items() if "layer7" not in k} == {
        k: v for k, v in theirs.items() if "layer7" not in k
    }
    maps = ca.create_model("p4cnn:group=D4>C4@3,width=4", features_only=True)(torch.randn(1, 1, 28, 28))
    assert [tuple(m.shape[1:3]) for m in maps] == [(4, 8), (8, 4)]


def test_files_and_names_restore_the_groups(tmp_path: Path) -> None:
    model = ca.create_model("p4cnn:group=D4>C4@3,width=3")
    assert network_name(model) == "p4cnn:group=D4>C4@3,width=3"
    ca.save_model(model, tmp_path / "model.safetensors")
    loaded = ca.load_model(tmp_path / "model.safetensors")
    x = torch.randn(1, 1, 28, 28)
    assert torch.equal(loaded.eval()(x), model.eval()(x))
    other = ca.create_model("p4cnn:group=D4>C4 clockwise@3,width=3")
    with pytest.raises(ValueError, match="group is D4>C4@3 instead of D4>C4 clockwise@3"):
        ca.load_model(tmp_path / "model.safetensors", into=other)


def test_onnx_certifies_the_last_group(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    export_onnx(settled("p4cnn:group=D4>C4@3,width=3", 28), tmp_path / "model.onnx")
    check = check_certificate(tmp_path / "model.onnx")
    assert check.agrees
    assert len(check.certificate.equivariance) == 4
    assert max(check.certificate.equivariance.values()) < 1e-5


def test_sequences_of_groups() -> None:
    sequence = GroupSequence.of("p4m>p4@3>z2")
    assert [sequence.at(part).name for part in range(1, 7)] == ["D4", "D4", "D4", "C4", "C1", "C1"]
    assert sequence == GroupSequence.of("D4 > C4@3 > C1@4") == GroupSequence.of(str(sequence))
    assert GroupSequence.of("C8>C4").is_exact is False
    assert GroupSequence.of(ca.dihedral(4)).last == ca.dihedral(4)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("p4cnn:group=C4>D4@3", "D4 is not a subgroup of C4"),
        ("p4cnn:group=D4>C4@x", "with a whole number after '@', got 'D4>C4@x'"),
        ("p4cnn:group=D4>C4@0", "after one part or more"),
        ("p4cnn:group=D4>C4@5>C2@3", "later each time"),
        ("p4cnn:group=D4>C4@7", "p4cnn has too few layers for group=D4>C4@7"),
        ("p4m_resnet44:group=D4>C4@3", "too few stages"),
        ("p4_allcnn:group=D4>C4@3", "p4_allcnn has one group throughout, got group=D4>C4@3; networks whose group can change with depth are z2cnn, p4cnn"),
    ],
)  # fmt: skip
def test_wrong_sequences(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ca.create_model(name)
