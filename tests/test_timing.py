"""Rounds, ratios and saved bytes; nothing here looks at the clock."""

from __future__ import annotations

import torch
from torch import nn

from coattend import _timing


def test_saved_bytes_count_each_storage_once() -> None:
    x = torch.randn(2, 3, dtype=torch.float32, requires_grad=True)

    class Squares(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.sin()  # saves x
            return y * y  # saves y, twice

    assert _timing.saved_bytes(Squares(), x) == 2 * 24


def test_rounds_are_interleaved_and_begin_with_another_each_time() -> None:
    order: list[str] = []
    steps = {name: (lambda name=name: order.append(name)) for name in "abc"}
    seconds = _timing.interleaved(steps, rounds=3, warm_up=1)
    assert "".join(order) == "abc" + "abc" + "bca" + "cab"
    assert {name: len(times) for name, times in seconds.items()} == {"a": 3, "b": 3, "c": 3}


def test_ratios_are_taken_round_by_round_and_given_with_their_quartiles() -> None:
    below = [1.0, 2.0, 4.0, 8.0, 16.0]
    above = [ratio * seconds for ratio, seconds in zip([5.0, 1.0, 3.0, 4.0, 2.0], below, strict=True)]
    found = _timing.compared("time", "a / b", above, below, limit=3.5)
    assert (found.low, found.ratio, found.high, found.limit) == (2, 3, 4, 3.5)


def test_only_forward_runs_under_autocast() -> None:
    under: list[tuple[str, bool]] = []

    class Watched(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            under.append(("forward", torch.is_autocast_enabled("cpu")))
            y = super().forward(x)
            if y.requires_grad:
                y.register_hook(lambda _: under.append(("backward", torch.is_autocast_enabled("cpu"))))
            return y

    torch.set_default_dtype(torch.float32)
    network, x = Watched(2, 2), torch.randn(3, 2)
    for bf16 in (False, True):
        _timing.training_step(network, x, torch.zeros(3, dtype=torch.int64), bf16)()
        _timing.inference(network, x, bf16)()
    assert under == [
        *(("forward", False), ("backward", False), ("forward", False)),
        *(("forward", True), ("backward", False), ("forward", True)),
    ]
