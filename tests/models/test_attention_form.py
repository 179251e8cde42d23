"""A form of attention that is defined here alone is an option of every network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import coattend as ca
from coattend.models import network_name
from coattend.nn.attention import ATTENTIONS, PoseAttention, register_attention


class Gate(PoseAttention):
    """One threshold per channel, relative to the mean over the poses."""

    def __init__(self, channels: int, group: ca.FiniteGroup | str) -> None:
        super().__init__(channels, group)
        self.threshold = nn.Parameter(torch.zeros(channels))

    def mask(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x - x.mean(2, keepdim=True) - self.threshold[:, None, None, None])


@pytest.fixture
def gate() -> Iterator[None]:
    register_attention("threshold")(Gate)
    yield
    ATTENTIONS.remove("threshold")


FAMILIES = {"p4cnn:width=3": 7, "p4m_allcnn:width=2": 9, "p4m_resnet44:width=2,blocks=1": 9, "r_nin_x4:width=6": 9,
            "r_resnet20_x4:width=2,blocks=1": 10}  # fmt: skip


@pytest.mark.usefixtures("gate")
@pytest.mark.parametrize("name", FAMILIES)
def test_it_stands_where_co_attention_at_the_output_does(name: str) -> None:
    attended = [m for m in ca.create_model(f"{name},attention=output").modules() if isinstance(m, ca.nn.CoAttention)]
    model = ca.create_model(f"{name},attention=threshold")
    gates = [m for m in model.modules() if isinstance(m, PoseAttention)]
    assert len(gates) == len(attended) == FAMILIES[name]
    assert {type(m) for m in gates} == {Gate}
    assert [m.channels for m in gates] == [m.channels for m in attended]
    size = 28 if "p4cnn" in name else 32 if "nin" in name else 33
    x = torch.randn(2, model.in_channels, size, size)
    ca.assert_equivariant(model, x, model.group)
    model(x).square().sum().backward()
    assert all(m.threshold.grad is not None and m.threshold.grad.any() for m in gates)


@pytest.mark.usefixtures("gate")
def test_files_hold_its_name_and_a_class_that_has_one_is_the_same_option(tmp_path: Path) -> None:
    model = ca.create_model("p4cnn:width=2,position=relu", attention=Gate)
    assert network_name(model) == "p4cnn:attention=threshold,position=relu,width=2"
    ca.save_model(model, tmp_path / "m.safetensors")
    again = ca.load_model(tmp_path / "m.safetensors")
    assert again.config == model.config
    x = torch.randn(2, 1, 28, 28)
    assert torch.equal(again.eval()(x), model.eval()(x))


def test_a_class_without_a_name_builds_but_is_not_saved(tmp_path: Path) -> None:
    model = ca.create_model("p4cnn:width=2", attention=Gate)
    assert network_name(model) == "p4cnn:attention=Gate,width=2"
    with pytest.raises(ValueError, match=r"cannot hold the class Gate; register it with coattend.register_attention"):
        ca.save_model(model, tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())


def test_wrong_forms_and_their_options_are_answered() -> None:
    with pytest.raises(ValueError, match="attention must be one of none, output, slice.*got 'threshold'"):
        ca.create_model("p4cnn:attention=threshold")
    with pytest.raises(ValueError, match="attention must be one of none, output, slice.*got <class .*Linear'>"):
        ca.create_model("p4cnn", attention=nn.Linear)
    with pytest.raises(ValueError, match="structure: Gate has no such option; leave it out, or use co-attention"):
        ca.create_model("p4cnn:structure=full", attention=Gate)
