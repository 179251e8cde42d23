"""The table of a restriction on a terminal of 80 columns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rich.console import Console

from coattend.groups import get_group
from coattend.report.console import restriction_table
from coattend.train.restriction import Restriction, Stage


@pytest.mark.parametrize("name", ["p4m", "C16"])
def test_every_contribution_is_printed_whole(name: str) -> None:
    group = get_group(name)
    everything = tuple(group.elements)
    layer = "stages.1.layer4.conv"
    values = torch.arange(group.order) / 1000 + 0.1
    stage = Stage("before", 1.0, 10, 10, {0: 0.0}, 1.0)
    found = Restriction(
        group, {layer: everything}, {layer: (0, 1)}, {layer: values}, (stage,), Path("small.safetensors")
    )
    console = Console(width=80)
    with console.capture() as captured:
        console.print(restriction_table(found))
    text = captured.get()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    for t in everything:
        assert (f" {values[t]:.3f} " if t < 2 else f"({values[t]:.3f})") in text
