from __future__ import annotations

import pytest
import torch
from torch import nn

import coattend as ca
from coattend.models import Blocks

P4 = ca.get_group("p4")


def names(layers: nn.Module) -> list[str]:
    return [name for name, _ in layers.named_children()]


@pytest.mark.parametrize(
    ("position", "activated", "normalized", "preactivation"),
    [
        ("conv", "conv attention norm act dropout", "conv attention norm", "norm act"),
        ("norm", "conv norm attention act dropout", "conv norm attention", "norm attention act"),
        ("relu", "conv norm act attention dropout", "conv norm attention", "norm act attention"),
    ],
)
def test_each_block_has_its_attention_once(position: str, activated: str, normalized: str, preactivation: str) -> None:
    layers = Blocks(P4, "output", position=position)
    assert names(layers.activate(layers.conv(2, 3, 3), dropout=0.1)) == activated.split()
    assert names(layers.normalize(layers.conv(2, 3, 3))) == normalized.split()
    before = layers.preactivation(layers.conv(2, 3, 3))
    assert names(before) == preactivation.split()
    assert before.norm.num_features == 2
    plain = Blocks(P4, position=position, norm=False)
    assert names(plain.activate(plain.lift(1, 3, 3))) == ["conv", "act"]


def test_pooling_replaces_strides_of_two_only() -> None:
    layers = Blocks(P4, "output", downsample="pool")
    block = layers.activate(layers.conv(2, 3, 3, stride=2, padding=1))
    assert names(block) == ["conv", "attention", "pool", "norm", "act"]
    assert block.conv.stride == 1
    assert block(torch.randn(1, 2, 4, 8, 8)).shape == (1, 3, 4, 4, 4)
    assert names(layers.lift(1, 2, 3)) == ["conv", "attention"]
    with pytest.raises(ValueError, match="can replace stride 2 only, got stride 3"):
        layers.lift(1, 2, 3, stride=3)


def test_slices_are_attended_to_inside_the_convolution() -> None:
    layers = Blocks(P4, "slice")
    assert isinstance(layers.conv(2, 3, 3).conv, ca.nn.SliceCoAttentiveConv2d)
    assert names(layers.conv(2, 3, 3)) == ["conv"]
    assert names(layers.lift(1, 3, 3)) == ["conv", "attention"]
    assert isinstance(layers.conv(2, 3, 3, attend=False).conv, ca.nn.GroupConv2d)


@pytest.mark.parametrize(("init_std", "expected"), [("fan_in", 1 / 12), ("he", (2 / 144) ** 0.5), (0.3, 0.3)])
def test_the_deviation_of_new_weights(init_std: str | float, expected: float) -> None:
    layers = Blocks(P4, "output", init_std=init_std)
    block = layers.conv(4, 200, 3)
    assert layers.std(block.conv) == pytest.approx(expected)
    assert block.conv.weight.std().item() == pytest.approx(expected, rel=0.03)
    assert block.attention.weight[:, 1:].std().item() == pytest.approx(expected, rel=0.1)
