"""Rows of runs, and their differences with intervals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from coattend.train.row import (
    IncomparableError,
    Row,
    difference,
    have_one_arithmetic,
    over_images,
    over_seeds,
    paired,
    rows_of,
)
from tests.train.records import record


def test_the_interval_over_seeds_is_students() -> None:
    deltas = [-0.31, -0.12, -0.45, 0.05]
    found = over_seeds(deltas)
    reference = stats.ttest_1samp(deltas, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high))
    assert found.mean == pytest.approx(np.mean(deltas))
    assert found.verdict == "undecided"
    assert over_seeds([-0.30, -0.31, -0.29]).verdict == "better"
    assert over_seeds([0.30, 0.31, 0.29]).verdict == "worse"


def test_the_bootstrap_agrees_with_the_normal_approximation() -> None:
    rng = np.random.default_rng(1)
    base, other = rng.random(20_000) < 0.030, rng.random(20_000) < 0.024
    found = over_images(base, other)
    delta = 100.0 * (other.astype(int) - base.astype(int))
    reach = 1.96 * delta.std() / np.sqrt(len(delta))
    assert found.mean == pytest.approx(delta.mean())
    assert (found.low, found.high) == pytest.approx((delta.mean() - reach, delta.mean() + reach), abs=0.02)
    assert found.verdict == "better"
    assert "one seed" in found.method
    assert over_images(base, base).mean == 0


def test_equal_differences_have_an_interval_of_no_width() -> None:
    found = over_seeds([0.25, 0.25, 0.25])
    assert (found.low, found.mean, found.high) == (0.25, 0.25, 0.25)


def test_runs_of_one_kind_are_a_row_by_seed() -> None:
    runs = [record("p4cnn", "house", seed, error, 2.0) for seed, error in ((2, 3.0), (0, 1.0))]
    runs.append(record("p4cnn", "house", 0, 5.0, 5.0, settings=("epochs=3",)))
    whole, changed = rows_of(runs).values()
    assert (whole.seeds, whole.errors, whole.mean, whole.protocol) == ((0, 2), (1.0, 3.0), 2.0, "valid")
    assert whole.spread == pytest.approx(2**0.5)
    assert (changed.kind.recipe_name, changed.spread) == ("house+epochs=3", None)


def test_differences_are_over_common_seeds_or_over_the_images_of_one() -> None:
    base = Row(tuple(record("z2cnn", "house", seed, None, 5.0) for seed in (0, 1, 2)))
    other = Row(tuple(record("p4cnn", "house", seed, None, error) for seed, error in ((1, 4.0), (2, 3.0), (3, 0.0))))
    found = difference(paired(base, other))
    assert (found.mean, found.method) == (-1.5, "paired over 2 seeds")
    assert difference(paired(base, Row(other.records[:1]))).method == "one seed: bootstrap over test images"
    with pytest.raises(IncomparableError, match="no seed in common"):
        difference(paired(base, Row(other.records[2:])))


def test_predictions_that_are_missing_or_of_other_images_are_not_compared() -> None:
    base, other = record("z2cnn", "house", 0, None, 5.0), record("p4cnn", "house", 0, None, 4.0)
    with pytest.raises(IncomparableError, match=r"p4cnn/seed0 has 999 test images, z2cnn/seed0 has 1000"):
        difference([(base, replace(other, tested=999))])
    with pytest.raises(IncomparableError, match=r"with one seed, predictions.npz of both runs is needed"):
        difference([(base, replace(other, tested=None))])


def test_arithmetic_that_is_not_recorded_differs_from_none() -> None:
    old, new = record("p4cnn", "house", 0, None, 1.0), record("p4cnn", "house", 0, None, 1.0, arithmetic="AVX2")
    assert have_one_arithmetic((old, new))
    assert have_one_arithmetic((new, new))
    assert not have_one_arithmetic((new, replace(new, arithmetic="AVX512")))
