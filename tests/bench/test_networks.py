"""The networks that are compared have the same shapes and compute the same functions."""

from __future__ import annotations

import torch

from coattend.bench import plain_network, random_batch, without_dropout
from coattend.bench.comparisons import attentive
from coattend.bench.networks import LiteralCoAttention, literal_network


def test_networks_are_alike() -> None:
    torch.set_default_dtype(torch.float32)
    images, _ = random_batch(2, 28)
    ours, literal = attentive().eval(), literal_network().eval()
    assert sum(isinstance(module, LiteralCoAttention) for module in literal.modules()) == 7
    literal.load_state_dict(ours.state_dict())
    torch.testing.assert_close(literal(images), ours(images), rtol=1e-4, atol=1e-5)
    assert plain_network()(images).shape == ours(images).shape
    maps = [layer for layer in plain_network() if isinstance(layer, torch.nn.Conv2d)]
    assert {layer.out_channels for layer in maps[:-1]} == {4 * without_dropout("p4cnn").feature_channels[0]}
