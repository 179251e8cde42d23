"""Observing a model: what is recorded, in which order, and that nothing of it stays."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import coattend as ca
from coattend.nn.observe import Call, estimate_norm_statistics, evaluating, recording


class Reversed(nn.Module):
    """Executes its layers in another order than they are defined, the first one twice."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 3)
        self.first = nn.Linear(3, 3)
        self.act = nn.ReLU()

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        return self.last(self.act(self.first(self.first(scale * x))))


def hooks(model: nn.Module) -> list[object]:
    return [hook for m in model.modules() for hook in (*m._forward_hooks.values(), *m._forward_pre_hooks.values())]


def test_calls_are_recorded_in_the_order_of_execution() -> None:
    model, x = Reversed(), torch.randn(2, 3)
    with recording(model, lambda call: call, nn.Linear) as calls:
        y = model(x)
    assert [call.name for call in calls] == ["first", "first", "last"]
    assert calls[1].inputs[0] is calls[0].output
    assert calls[2].output is y
    assert hooks(model) == []


def test_layers_by_class_or_by_name_before_or_after() -> None:
    model, x = Reversed(), torch.randn(2, 3)

    def shown(call: Call) -> tuple[str, bool] | None:
        return None if call.layer is model.act else (call.name, call.output is None)

    with (
        recording(model, shown, before=True) as before,
        recording(model, shown, {"the last": model.last}) as after,
        recording(model, lambda call: call.keywords or None) as keywords,
    ):
        model(x, scale=2.0)
    assert before == [("", True), ("first", True), ("first", True), ("last", True)]
    assert after == [("the last", False)]
    assert keywords == [{"scale": 2.0}]


def test_hooks_and_modes_are_restored_when_the_model_fails() -> None:
    model = Reversed()
    model.act.eval()
    with pytest.raises(RuntimeError), evaluating(model), recording(model, lambda call: call):
        model(torch.randn(2, 5))
    assert hooks(model) == []
    assert [m.training for m in model.modules()] == [True, True, True, False]


def test_statistics_are_the_average_over_batches_with_dropout_off() -> None:
    model = nn.Sequential(nn.Dropout(0.9), ca.nn.GroupBatchNorm2d(2, momentum=0.3))
    batches = [torch.randn(4, 2, 4, 3, 3) + shift for shift in (0.0, 3.0)]
    estimate_norm_statistics(model, batches)
    norm = model[1]
    torch.testing.assert_close(norm.running_mean, torch.stack([b.mean((0, 2, 3, 4)) for b in batches]).mean(0))
    assert norm.momentum == 0.3
    assert model.training
    assert norm.training
