"""The pattern of attention matrices is read from their values, whatever the form of attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import coattend as ca
from coattend.report.matrix_figure import structure_name, tied_entries


@pytest.mark.parametrize(
    ("group", "structure", "name"),
    [
        ("p4", "group", "circulant"),
        ("p4m", "group", "blocks of D4"),
        ("p4m", "paper", "tied, but not equivariant"),
        ("p4", "full", "none, all free"),
    ],
)
def test_tied_entries_are_those_of_one_parameter(group: str, structure: str, name: str) -> None:
    layer = ca.nn.CoAttention(3, group, structure)
    torch.nn.init.normal_(layer.weight)
    index = tied_entries(layer.matrix().detach().numpy())
    n = layer.group.order
    expected = np.arange(n * n).reshape(n, n) if layer.index is None else layer.index.numpy()
    np.testing.assert_array_equal(index, expected)
    assert structure_name(layer, index) == name
