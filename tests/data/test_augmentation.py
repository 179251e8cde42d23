from __future__ import annotations

import math

import pytest
import torch
from torch import Generator, Tensor

from coattend.data import make_augmentation
from coattend.data.augmentation import rotate_batch

ALL = ["quarter-turns", "flips", "rotate", "rotate=30", "shift=2", "crop=4", "zoom-crop=0.875", "elastic=1.5"]


def generator(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def batch(count: int = 200, side: int = 9) -> Tensor:
    return torch.randn(count, 3, side, side, generator=generator(9), dtype=torch.float32)


def smooth(count: int, side: int = 33) -> Tensor:
    """One round bump in the middle of an image's right half."""
    steps = torch.arange(side, dtype=torch.float64) - (side - 1) / 2
    bump = torch.exp(-((steps[None, :] - 7) ** 2 + steps[:, None] ** 2) / 18)
    return bump.expand(count, 1, side, side).clone()


@pytest.mark.parametrize("steps", [[name] for name in ALL] + [ALL])
def test_the_generator_alone_decides(steps: list[str]) -> None:
    augment, x = make_augmentation(steps), batch()
    kept = x.clone()
    first = augment(x, generator())
    torch.manual_seed(123)
    assert torch.equal(augment(x, generator()), first)
    assert not torch.equal(augment(x, generator(1)), first)
    assert first.shape == x.shape
    assert first.dtype == x.dtype
    assert torch.equal(x, kept)
    assert first.isfinite().all()


def test_a_generator_taken_up_from_its_state_goes_on_bit_for_bit() -> None:
    augment, x, drawn = make_augmentation(ALL), batch(), generator()
    augment(x, drawn)
    state = drawn.get_state()
    expected = augment(x, drawn)
    resumed = Generator()
    resumed.set_state(state)
    assert torch.equal(augment(x, resumed), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.uint8])
def test_quarter_turns_and_flips_are_exact_and_all_occur(dtype: torch.dtype) -> None:
    x = (batch() * 50).to(dtype)
    for steps, copies in (
        (["quarter-turns"], [x.rot90(k, (-2, -1)) for k in range(4)]),
        (["flips"], [x, x.flip(-1)]),
        (["flips", "quarter-turns"], [y.rot90(k, (-2, -1)) for y in (x, x.flip(-1)) for k in range(4)]),
    ):
        y = make_augmentation(steps)(x, generator())
        matches = torch.stack([(y == copy).flatten(1).all(1) for copy in copies])
        assert matches.any(0).all()
        share = matches.double().mean(1)
        assert (share > 0.5 / len(copies)).all()


def test_rotation_turns_counter_clockwise_as_rot90_does() -> None:
    x = smooth(3)
    for k in range(4):
        turned = rotate_batch(x, torch.full((3,), k * math.pi / 2))
        assert (turned - x.rot90(k, (-2, -1))).abs().max() < 1e-6
    eighth = rotate_batch(rotate_batch(x, torch.full((3,), math.pi / 4)), torch.full((3,), math.pi / 4))
    assert (eighth - x.rot90(1, (-2, -1)))[..., 6:-6, 6:-6].abs().max() < 0.03
    wide = torch.nn.functional.pad(x, (6, 6))  # an oblong image turns rigidly too
    assert (
        rotate_batch(wide, torch.full((3,), math.pi / 3))[..., 6:-6] - rotate_batch(x, torch.full((3,), math.pi / 3))
    )[..., 8:-8, 8:-8].abs().max() < 1e-6


def angles(x: Tensor) -> Tensor:
    """Where the bump went, in degrees."""
    side = x.shape[-1]
    steps = torch.arange(side, dtype=x.dtype) - (side - 1) / 2
    right, up = (x * steps).sum((1, 2, 3)), -(x * steps[:, None]).sum((1, 2, 3))
    return torch.rad2deg(torch.atan2(up, right))


def test_rotation_angles_are_uniform_within_the_limit() -> None:
    turned = angles(make_augmentation(["rotate=30"])(smooth(2000), generator()))
    assert turned.abs().max() < 30.5
    assert (torch.histc(turned, 6, -30, 30) > 250).all()
    whole = angles(make_augmentation(["rotate"])(smooth(2000), generator()))
    assert (torch.histc(whole, 6, -180, 180) > 250).all()


def test_rotation_continues_the_border_instead_of_filling_with_zero() -> None:
    background = torch.full((20, 1, 9, 9), -0.42)
    assert torch.allclose(make_augmentation(["rotate"])(background, generator()), background)


def test_shifts_are_continuous_and_bounded() -> None:
    x = smooth(2000)
    moved = make_augmentation(["shift=2"])(x, generator())
    steps = torch.arange(33, dtype=x.dtype)
    mass = moved.sum((1, 2, 3))
    right = (moved * steps).sum((1, 2, 3)) / mass - (x[:1] * steps).sum() / x[0].sum()
    down = (moved * steps[:, None]).sum((1, 2, 3)) / mass - 16
    for shift in (right, down):
        assert shift.abs().max() < 2.1
        assert (torch.histc(shift, 4, -2, 2) > 400).all()
        assert len(shift.round(decimals=6).unique()) > 1900
    assert torch.corrcoef(torch.stack([right, down]))[0, 1].abs() < 0.1


def test_padded_crops_are_whole_pixel_shifts_with_zeros_around() -> None:
    x = batch(400, side=7)
    y = make_augmentation(["crop=2"])(x, generator())
    padded = torch.nn.functional.pad(x, [2] * 4)
    seen = torch.zeros(5, 5)
    for top in range(5):
        for left in range(5):
            same = (y == padded[..., top : top + 7, left : left + 7]).flatten(1).all(1)
            seen[top, left] = same.sum()
    assert seen.sum() == 400
    assert (seen > 0).all()


def test_zoom_crops_enlarge_four_of_five_images_and_leave_the_others_exactly() -> None:
    x = smooth(1000)
    y = make_augmentation(["zoom-crop=0.875"])(x, generator())
    untouched = (y == x).flatten(1).all(1)
    assert 0.15 < untouched.double().mean() < 0.25
    growth = y[~untouched].sum((1, 2, 3)) / x[0].sum()
    assert growth.min() > 0.99
    assert growth.max() < 1 / 0.875**2 + 0.01
    assert growth.max() > 1.25


def test_elastic_bending_moves_every_pixel_along_a_smooth_field() -> None:
    """On an image whose value is its column, or its row, the change of a pixel is how far it was moved."""
    side, inside = 25, slice(4, -4)
    places = torch.arange(side, dtype=torch.float64)
    x = torch.stack([places.expand(side, side), places[:, None].expand(side, side)]).expand(300, 2, side, side)
    moved = (make_augmentation(["elastic=1.5"])(x, generator()) - x)[..., inside, inside]
    every = 24 // 3  # the points lie at 0, 8, 16 and 24
    at_points = moved[..., 4::every, 4::every]
    assert at_points.abs().max() < 1.5
    assert at_points.abs().max() > 1.45
    assert at_points.mean().abs() < 0.1
    assert moved.abs().max() < 1.5 * 1.9  # between them a cubic may go beyond
    neighbours = moved.diff(dim=-1).abs().max()
    assert neighbours < 1.5 * 2 * 1.9 / every * 2  # no jumps: white noise of this size would jump by 3
    assert make_augmentation(["elastic=0.0001"])(x, generator()).sub(x).abs().max() < 1e-3


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (["quarterturns"], r"unknown augmentation 'quarterturns' \(did you mean quarter-turns\?\); the known"),
        (["flips=2"], r"unknown augmentation 'flips=2' \(did you mean flips\?\)"),
        (["shift"], "shift expects a number above 0 and up to inf, as in shift=2, got 'shift'"),
        (["shift=-1"], "got 'shift=-1'"),
        (["shift=two"], "got 'shift=two'"),
        (["crop=1.5"], "crop expects a whole number"),
        (["rotate=181"], "up to 180"),
        (["zoom-crop=1.5"], "up to 1"),
        (["crop=nan"], "crop expects a whole number"),
        (["crop=inf"], "crop expects a whole number"),
        ("flips", "put them in a list"),
        (None, "make_augmentation expects a sequence of step names, got None"),
        ([3], r"expects a sequence of step names, got \[3\]"),
    ],
)
def test_wrong_steps_are_told(steps: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_augmentation(steps)


def test_wrong_batches_are_told() -> None:
    with pytest.raises(ValueError, match="quarter-turns expects square images, got 4 x 5"):
        make_augmentation(["quarter-turns"])(torch.zeros(1, 1, 4, 5), generator())
    with pytest.raises(ValueError, match="expects a batch"):
        make_augmentation(["flips"])(torch.zeros(1, 4, 5), generator())
    with pytest.raises(ValueError, match="expects floating-point images, got torch.uint8"):
        make_augmentation(["rotate"])(torch.zeros(1, 1, 4, 4, dtype=torch.uint8), generator())
