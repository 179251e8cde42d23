"""Indices that are kept follow their tables, and can be used in every mode."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor

import coattend as ca
from coattend.functional import kept_index as module
from coattend.functional.kept_index import kept_index


class Made:
    """Counts how often an index is made."""

    def __init__(self, first: Tensor, other: Tensor) -> None:
        self.tables, self.times = (first, other), 0

    def __call__(self) -> Tensor:
        self.times += 1
        return self.tables[0][:, None] + self.tables[1]

    def kept(self, key: str = "sum") -> Tensor:
        return kept_index(*self.tables, key, self)


@pytest.fixture
def made() -> Made:
    return Made(torch.arange(3), torch.arange(4))


def test_is_made_once_for_each_key(made: Made) -> None:
    assert made.kept().tolist() == (torch.arange(3)[:, None] + torch.arange(4)).flatten().tolist()
    assert made.kept() is made.kept()
    assert made.times == 1
    made.kept("another")
    assert made.times == 2


@pytest.mark.parametrize("number", [0, 1])
def test_follows_tables_that_change(made: Made, number: int) -> None:
    before = made.kept()
    made.tables[number].add_(10)
    assert made.kept().tolist() == (before + 10).tolist()


def test_follows_another_second_table(made: Made) -> None:
    made.kept()
    made.tables = made.tables[0], torch.zeros(2, dtype=torch.int64)
    assert made.kept().tolist() == [0, 0, 1, 1, 2, 2]


def test_large_ones_are_not_kept(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST", 11)
    made.kept(), made.kept()
    assert made.times == 2


def test_is_freed_with_its_table(made: Made) -> None:
    made.kept()
    gc.collect()  # what earlier tests have left
    before = len(module._INDICES)
    made.tables = made.tables[1], made.tables[1]
    gc.collect()
    assert len(module._INDICES) == before - 1


def test_one_of_inference_mode_serves_training() -> None:
    conv, x = ca.nn.GroupConv2d(2, 3, 3, group="p4"), torch.randn(1, 2, 4, 5, 5)
    conv.train()
    with torch.inference_mode():
        expected = conv(x)
    y = conv(x)
    y.sum().backward()
    torch.testing.assert_close(y, expected)
    assert conv.weight.grad is not None


def test_layers_that_move_have_tables_and_indices_of_their_own() -> None:
    conv, x = ca.nn.GroupConv2d(2, 3, 3, group="p4"), torch.randn(1, 2, 4, 5, 5)
    before = conv(x)
    torch.testing.assert_close(conv.float()(x.float()).double(), before, rtol=1e-4, atol=1e-5)
