"""How much relative poses contribute, what they cost, and which are kept."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

import coattend as ca
from coattend.models import Probe, choose_poses, contributions, group_convolutions, restricted
from coattend.models.contributions import MEASURES
from coattend.nn.observe import estimate_norm_statistics, multiply_adds

SHAPE = (1, 28, 28)


def network(name: str = "p4cnn:width=4") -> ca.models.EquivariantNetwork:
    model = ca.create_model(name)
    estimate_norm_statistics(model, [torch.randn(8, *SHAPE)])
    return model


def data(count: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, *SHAPE), torch.arange(count) % 10


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("name", ["p4cnn:width=4", "a_p4cnn:width=4", "a_p4cnn:width=4,attention=output"])
def test_a_pose_without_weights_contributes_nothing(name: str, measure: str) -> None:
    model = network(name)
    layer = "stages.1.layer4.conv"
    with torch.no_grad():
        group_convolutions(model)[layer].weight[:, :, 2] = 0
    probe = Probe.of(model, *data())
    before = copy.deepcopy(model.state_dict())
    found = contributions(model, probe, measure)
    assert set(found) == set(group_convolutions(model))
    assert abs(found[layer][2]) < 1e-12
    assert all(abs(value) > 1e-12 for value in found[layer][[0, 1, 3]])
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert model.training
    assert measure == "loss" or found[layer].argmin() == 2  # a pose of an untrained network may do harm


def test_loss_and_logits_are_measured_as_those_of_the_cut_network() -> None:
    model = network()
    images, labels = data()
    layer = "stages.1.layer3.conv"
    probe = Probe.of(model, images, labels)
    rise, moved = (contributions(model, probe, measure, [layer])[layer] for measure in ("loss", "logits"))

    def logits(m: torch.nn.Module) -> torch.Tensor:
        m.eval()
        for norm in m.modules():
            if isinstance(norm, ca.nn.GroupBatchNorm2d):
                norm.train()
        return m(images)

    cut = restricted(model, {layer: (0, 1, 2)})
    before, after = logits(copy.deepcopy(model)), logits(cut)
    expected = F.cross_entropy(after, labels) - F.cross_entropy(before, labels)
    assert rise[3].item() == pytest.approx(expected.item(), abs=1e-9)
    assert moved[3].item() == pytest.approx((after - before).square().mean().item(), abs=1e-9)


def test_the_gradient_measure_is_the_slope_of_the_loss() -> None:
    model = network()
    images, labels = data(6)
    layer = "stages.0.layer2.conv"
    found = contributions(model, Probe.of(model, images, labels), "gradient", [layer])[layer]
    weight, step, losses = group_convolutions(model)[layer].weight, 1e-5, []
    for sign in (1, -1):
        with torch.no_grad():
            weight[:, :, 1] *= 1 + sign * step
        probe = copy.deepcopy(model).train()
        losses.append(F.cross_entropy(probe(images), labels).item())
        with torch.no_grad():
            weight[:, :, 1] /= 1 + sign * step
    assert found[1].item() == pytest.approx(abs(losses[0] - losses[1]) / (2 * step), rel=1e-4)


@pytest.mark.parametrize("name", ["p4cnn:width=8,head=max", "a_p4cnn:width=4", "p4m_allcnn:width=2"])
@pytest.mark.parametrize("relative", [None, (0, 3)])
def test_multiply_adds_are_those_that_torch_counts(name: str, relative: tuple[int, ...] | None) -> None:
    model = ca.create_model(name).eval()
    if relative is not None:
        model = restricted(model, relative)
    shape = (model.in_channels, 28, 28)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, *shape))
    needed = multiply_adds(model, shape)
    layers = group_convolutions(model)
    wasted = sum(
        needed[name] * (layer.group.order / len(layer.relative) - 1)
        for name, layer in layers.items()
        if isinstance(layer, ca.nn.GroupConv2d) and layer.is_restricted and not layer.in_blocks
    )
    convolutions = sum(n for op, n in counter.get_flop_counts()["Global"].items() if op.__name__.startswith("conv"))
    assert convolutions == 2 * (sum(needed.values()) + wasted)


def test_a_budget_is_kept_and_spent() -> None:
    model = network()
    whole = sum(multiply_adds(model, SHAPE).values())
    probe = Probe.of(model, *data(1))

    def weights(m: torch.nn.Module, layers: Iterable[str]) -> dict[str, torch.Tensor]:
        return contributions(m, probe, "weights", layers)

    for budget in (0.4, 0.6, 0.9):
        cut = restricted(model, choose_poses(model, weights, budget=budget, image_shape=SHAPE))
        assert budget - 0.12 < sum(multiply_adds(cut, SHAPE).values()) / whole <= budget
    for wrong in (0.0, 0.2, 1.5):
        with pytest.raises(ValueError, match="the budget is a share of the multiply-adds, from 0.2[5-9]"):
            choose_poses(model, weights, budget=wrong, image_shape=SHAPE)
    with pytest.raises(ValueError, match="keep must be from 1 to 4"):
        choose_poses(model, weights, keep=5)
    with pytest.raises(ValueError, match="either keep, how many"):
        choose_poses(model, weights)
    with pytest.raises(ValueError, match="no group convolution"):
        choose_poses(ca.create_model("z2cnn"), weights, keep=1)


def test_unknown_measures_and_missing_images_are_refused() -> None:
    model = network()
    with pytest.raises(ValueError, match="measure must be one of logits, loss, gradient, responses, weights, got 'si"):
        contributions(model, Probe.of(model, *data()), "size")
    with pytest.raises(ValueError, match="expected images and as many labels, at least one, got 0 and 0"):
        Probe.of(model, *data(0))
