"""The synthetic fibres of the study: their true angles are those that the pixels show."""

from __future__ import annotations

import math

import pytest
import torch

from experiments import fibre_orientation as study


def test_the_angles_are_those_of_the_fibres() -> None:
    """Along fibres brightness changes least: the mean structure tensor of an image has its axis across them."""
    torch.set_default_dtype(torch.float32)
    images, angles = study.fibres(16, torch.Generator().manual_seed(0), noise=0.0)
    up, right = -(images[..., 2:, 1:-1] - images[..., :-2, 1:-1]), images[..., 1:-1, 2:] - images[..., 1:-1, :-2]
    gradient = torch.cat(
        [right.square() - up.square(), 2 * right * up], 1
    )  # the axis of the gradient, times its square
    truth = study.axes_of(angles)[..., 1:-1, 1:-1]
    agreement = (gradient * truth).sum() / (gradient.norm(dim=1) * truth.norm(dim=1)).sum()
    assert agreement < -0.6  # opposite axes are perpendicular lines
    mirrored = truth * torch.tensor([1.0, -1.0])[:, None, None]
    assert (gradient * mirrored).sum().abs() < 0.3 * (gradient * truth).sum().abs()


def test_errors_are_angles_between_axes() -> None:
    angles = torch.tensor([0.0, 0.5, 1.0]).reshape(1, 1, 3)
    moved = study.axes_of(angles + math.radians(10))
    assert study.error_degrees(moved, study.axes_of(angles)) == pytest.approx(10)
    assert study.error_degrees(study.axes_of(angles + math.pi), study.axes_of(angles)) == pytest.approx(0, abs=1e-9)


def test_a_few_steps_of_training(capsys: pytest.CaptureFixture[str]) -> None:
    torch.set_default_dtype(torch.float32)
    study.main("coat_unet:output=axis,num_classes=1,in_channels=1,width=1,depth=1", steps=2, batch=2)
    printed = capsys.readouterr().out
    assert "degrees on 64 images" in printed
    assert "vector part included" in printed
