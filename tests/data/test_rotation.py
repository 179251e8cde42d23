from __future__ import annotations

import numpy as np
import pytest

from coattend.data.rotation import rotate
from tests.data import fakes

ndimage = pytest.importorskip("scipy.ndimage")


def test_turning_agrees_with_scipy_splines() -> None:
    images, _ = fakes.digits("train")
    degrees = np.random.RandomState(0).uniform(0, 360, len(images))
    expected = [
        ndimage.rotate(image.astype(float), angle, reshape=False, order=3, mode="grid-constant")
        for image, angle in zip(images, degrees, strict=True)
    ]
    difference = rotate(images, degrees).astype(float) - np.clip(expected, 0, 255)
    assert np.abs(difference).max() < 0.5 + 1e-2  # rounding to bytes, and their treatment of the far border


def test_quarter_turns_are_exact_and_whole_turns_change_nothing() -> None:
    images, _ = fakes.digits("train")
    for k in range(-4, 9):
        assert np.array_equal(rotate(images, np.full(60, 90.0 * k)), np.rot90(images, k, (1, 2)))
    with pytest.raises(ValueError, match="expects uint8 images"):
        rotate(images, np.zeros(3))
