"""sfcnn: its parameters, exactness over quarter turns, and what it refuses."""

from __future__ import annotations

import pytest
import torch

import coattend as ca
from tests.models.test_zoo import settled, worst_error


def test_parameter_count() -> None:
    pairs = 8 * 12 + 12 * 16 + 16 * 20 + 20 * 24 + 24 * 36  # of channels
    convolutions = 16 * 8 + 8 * 11 * pairs  # 16 functions of steerable 7x7 filters, 11 of 5x5, 8 poses
    biases_and_norms = 3 * (8 + 12 + 16 + 20 + 24 + 36)
    dense = 36 * 64 + 2 * 64 + 65 * 10
    count = sum(p.numel() for p in ca.create_model("sfcnn").parameters())
    assert count == convolutions + biases_and_norms + dense == 175_334


@pytest.mark.parametrize("options", [{}, {"group": "D4", "kernel": 3}])
def test_logits_are_invariant(options: dict[str, object]) -> None:
    model = settled("sfcnn", width=2, **options)
    quarter_turns = ca.get_group("D4" if options else "C4")
    assert worst_error(model, torch.randn(1, 1, 28, 28), quarter_turns) <= 1e-10
    assert ca.is_exact(model, 28) == bool(options)


def test_backward_reaches_every_parameter() -> None:
    model = ca.create_model("sfcnn", width=2, dropout=0.2, attention="output", group="p4")
    torch.nn.functional.cross_entropy(model(torch.randn(3, 1, 28, 28)), torch.tensor([3, 7, 1])).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.any(), name


def test_even_kernels_are_refused() -> None:
    with pytest.raises(ValueError, match="kernel must be odd"):
        ca.create_model("sfcnn:kernel=4")
