"""Which networks are compared, and the largest ratios allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn

from coattend.bench.networks import literal_network, p4_network_of_e4_shape, plain_network, without_dropout

Network = Callable[[], nn.Module]
p4cnn, attentive = partial(without_dropout, "p4cnn"), partial(without_dropout, "a_p4cnn:attention=output")
PLAIN = "p4-CNN / plain conv2d network"
OUTPUT = "a-p4-CNN (output) / p4-CNN"


@dataclass(frozen=True)
class Comparison:
    """Two networks that run in the same mode, and the limits of time in training, in inference, and of saved bytes."""

    name: str
    above: Network
    below: Network
    training: float | None = None
    inference: float | None = None
    saved: float | None = None
    in_bf16: bool = False  # whether it is also measured in bfloat16


COMPARISONS = (
    Comparison(PLAIN, p4cnn, plain_network, training=1.02, inference=1.0, in_bf16=True),
    Comparison(OUTPUT, attentive, p4cnn, training=1.08, inference=1.05, saved=1.25, in_bf16=True),
    Comparison("a-p4-CNN (literal formula) / p4-CNN", literal_network, p4cnn),
    Comparison(
        "a-p4-CNN (slice) / p4-CNN",
        partial(without_dropout, "a_p4cnn"),
        p4cnn,
        training=1.5,
        inference=1.5,
        in_bf16=True,
    ),
    Comparison(
        "a-DREN (slice) / DREN",
        partial(without_dropout, "a_dren"),
        partial(without_dropout, "dren"),
        training=1.5,
        inference=1.5,
    ),
    Comparison("p4-CNN (gates) / p4-CNN", partial(without_dropout, "p4cnn:attention=gate"), p4cnn, training=1.3),
    Comparison(
        "p4-CNN (pose self-attention) / p4-CNN", partial(without_dropout, "p4cnn:attention=pose"), p4cnn, training=2.0
    ),
    Comparison(
        "e4-CNN (generated filters) / p4-CNN of its shape",
        partial(without_dropout, "e4cnn"),
        p4_network_of_e4_shape,
        training=2.0,
        saved=2.0,
    ),
)


@dataclass(frozen=True)
class Lead:
    """A network, and the limits of its training step relative to float32 planes."""

    name: str
    network: Network
    in_float32: float | None = None
    in_bf16: float | None = None


LEADS = (Lead("p4-CNN", p4cnn, in_float32=0.75, in_bf16=0.50), Lead("plain conv2d network", plain_network))
COMPILED_LIMIT = E2CNN_LIMIT = 1.02
BUILDING_LIMIT = 0.5
