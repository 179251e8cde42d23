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


def test_masks_of_any_model_without_touching_it() -> None:
    model = nn.Sequential(
        ca.nn.LiftingConv2d(1, 3, 3, "p4"),
        ca.nn.CoAttention(3, "p4"),
        ca.nn.GroupBatchNorm2d(3),
        nn.Dropout(0.5),
        ca.nn.SliceCoAttentiveConv2d(3, 2, 3, "p4"),
        ca.nn.ProjectionConv2d(2, 2, 3, "p4", attention=True),
    )
    model[3].eval()  # modes differ: each must come back
    before = {k: v.clone() for k, v in model.state_dict().items()}
    modes = [m.training for m in model.modules()]
    x = torch.randn(2, 1, 12, 12)
    masks = ca.attention_masks(model, x)
    assert {k: tuple(v.shape) for k, v in masks.items()} == {
        "1": (2, 3, 4, 10, 10),
        "4.attention": (2, 8, 4, 8, 8),
        "5.attention": (2, 2, 4, 6, 6),
    }
    lifted = model[0](x)
    torch.testing.assert_close(masks["1"] * lifted, model[1](lifted))
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not any(m._forward_pre_hooks for m in model.modules())
    assert ca.attention_masks(nn.Conv2d(1, 1, 3), x) == {}


def test_masks_move_with_the_input() -> None:
    """[RH20] appendix: all masks move synchronously with the input."""
    G = ca.dihedral(4)
    model = nn.Sequential(
        ca.nn.LiftingConv2d(1, 3, 3, G), ca.nn.CoAttention(3, G), ca.nn.GroupConv2d(3, 3, 3, G), ca.nn.CoAttention(3, G)
    )
    x = torch.randn(2, 1, 9, 9)
    straight = ca.attention_masks(model, x)
    for g in G.elements:
        moved = ca.attention_masks(model, ca.groups.transform_image(x, G, g))
        for name, mask in straight.items():
            torch.testing.assert_close(moved[name], ca.groups.transform_map(mask, G, g))


def test_hooks_are_removed_when_the_model_fails() -> None:
    model = nn.Sequential(ca.nn.LiftingConv2d(1, 3, 3, "p4"), ca.nn.CoAttention(3, "p4"))
    with pytest.raises(ValueError, match="LiftingConv2d expects an image"):
        ca.attention_masks(model, torch.randn(1, 2, 5, 5))
    assert model.training
    assert not model[1]._forward_pre_hooks
