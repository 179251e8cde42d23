"""The bank of a group convolution against its definition, in both memory formats."""

from __future__ import annotations

import pytest
import torch

from coattend.functional.filter_bank import group_filters, turn_filters
from coattend.functional.tables import group_tables
from coattend.groups import Filters
from coattend.nn import GroupConv2d


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("filters", ["free", "steerable"])
@pytest.mark.parametrize(("group", "relative"), [("C4", None), ("D4", (0, 3, 5)), ("C8", None), ("C8", (0, 1, 7))])
def test_group_filters_by_definition(
    group: str, relative: tuple[int, ...] | None, filters: Filters, channels_last: bool
) -> None:
    layer = GroupConv2d(3, 2, 3, group, filters=filters, relative=relative, dtype=torch.float64)
    g, weight = layer.group, layer.weight
    tables = group_tables(g, 3, layer.relative, 3, 2, 1, filters)
    bank = group_filters(weight, tables.turns, tables.relative, channels_last=channels_last)
    assert bank.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)

    expected = torch.zeros(2, g.order, 3, g.order, 3, 3, dtype=torch.float64)
    for t, pose in enumerate(layer.relative):
        turned = turn_filters(weight[:, :, t], tables.turns)  # o i g k k
        for output in g.elements:
            expected[:, output, :, g.product[output, pose]] = turned[:, :, output]
    torch.testing.assert_close(bank, expected.flatten(0, 1).flatten(1, 2), rtol=0, atol=1e-15)

    direction = torch.randn_like(bank)
    found, wanted = (
        torch.autograd.grad((b.reshape(direction.shape) * direction).sum(), weight) for b in (bank, expected)
    )
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-13)
