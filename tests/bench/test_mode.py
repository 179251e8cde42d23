"""Both networks of a line run in the format and precision that its heading names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from coattend.bench import plain_network, random_batch
from coattend.bench.comparisons import p4cnn
from coattend.bench.mode import Mode, resolved
from coattend.functional.layout import is_channels_last, memory_format, prefers_channels_last


@pytest.mark.parametrize("network", [p4cnn, plain_network])
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("name", ["planes", "channels_last"])
def test_maps_have_the_format_and_precision_of_the_mode(
    name: Literal["planes", "channels_last"], bf16: bool, network: Callable[[], nn.Module]
) -> None:
    torch.set_default_dtype(torch.float32)
    model, mode = network(), Mode(name, bf16)
    images, labels = random_batch(2, 28)
    maps: list[Tensor] = []
    convolutions = [layer for layer in model.modules() if "Conv2d" in type(layer).__name__][:6]
    assert len(convolutions) == 6
    for layer in convolutions:
        layer.register_forward_hook(lambda layer, inputs, output: maps.append(output))
    for step in (mode.training_step(model, images, labels), mode.inference(model, images)):
        step()
    mode.saved_bytes(model, images)
    assert len(maps) == 18
    assert {is_channels_last(y) for y in maps} == {name == "channels_last"}
    assert {y.dtype for y in maps} == {torch.bfloat16 if bf16 else torch.float32}
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_auto_is_the_format_of_this_machine() -> None:
    image = torch.zeros(1, 1, 4, 4, dtype=torch.float32)
    for name in ("auto", "planes", "channels_last"):
        with memory_format(name):
            assert (resolved(name) == "channels_last") == prefers_channels_last(image)
