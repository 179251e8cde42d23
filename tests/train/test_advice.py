"""Advice on datasets whose symmetry is known by construction: bars, of which the class is the shape."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from coattend.data import Dataset, Split, make_augmentation
from coattend.report.console import advice_table
from coattend.train import advice
from coattend.train.advice import Advice, advise


def images(number: int, poses: tuple[int, ...], seed: int, other: str) -> Split:
    """Return an L and another shape on a noisy ground; element 4 m + r mirrors m times, then turns r times."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(60, (number, 1, 15, 15), generator=generator)
    labels = torch.randint(2, (number,), generator=generator)
    for i, label in enumerate(labels):
        pixels[i, 0, 2:13, 6:8] += 150
        if label:
            pixels[i, 0, 11:13, 8:13] += 150
        elif other == "J":
            pixels[i, 0, 11:13, 1:6] += 150
        else:
            pixels[i, 0, 2:4, 8:13] += 150
        g = poses[int(torch.randint(len(poses), (), generator=generator))]
        pose = torch.flip(pixels[i], (-1,)) if g >= 4 else pixels[i]
        pixels[i] = torch.rot90(pose, g % 4, (-2, -1))
    return Split(pixels.to(torch.uint8), labels)


def dataset(poses: tuple[int, ...], other: str = "gamma", random_labels: bool = False) -> Dataset:
    splits = [images(n, poses, seed, other) for n, seed in ((600, 0), (100, 1), (300, 2))]
    if random_labels:
        splits = [Split(s.images, torch.randint(2, s.labels.shape)) for s in splits]
    return Dataset("bars", *splits, classes=(other, "L"), provenance="drawn")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "FIRST_STEPS", 60)
    monkeypatch.setattr(advice, "SECOND_STEPS", 60)


# A J is a mirrored L; a gamma is an L turned over, which no turn of an L is.
@pytest.mark.parametrize(
    ("poses", "other", "group"), [((0,), "J", "none"), ((0, 4), "gamma", "D1"), ((0, 1, 2, 3), "gamma", "C4")]
)
def test_the_group_that_made_the_images_is_recommended(poses: tuple[int, ...], other: str, group: str) -> None:
    result = advise(dataset(poses, other))
    assert result.group == group
    assert result.poses[0].accuracy > 0.95
    assert advice_table(result).row_count == 10
    assert (group if group != "none" else "no symmetry") in str(result)


def turned(degrees: float) -> Dataset:
    """Return the shapes, each turned by a random angle up to so many degrees."""
    generator, data = torch.Generator().manual_seed(0), dataset((0,))
    augment = make_augmentation([f"rotate={degrees}"])
    splits = [
        Split(augment(s.images.float(), generator).round().clamp(0, 255).to(torch.uint8), s.labels)
        for s in data.splits().values()
    ]
    return replace(data, **dict(zip(("train", "valid", "test"), splits, strict=True)))


def test_the_envelope_has_the_turns_that_occur() -> None:
    little, much = advise(turned(30)), advise(turned(180))
    assert little.envelope[0] == much.envelope[0] == 1
    assert 30 <= little.reach < 90
    assert f"augment with rotate={little.reach}" in str(little)
    assert much.reach == 180
    assert "augment" not in str(much)


def test_random_labels_are_undecided() -> None:
    result = advise(dataset((0,), random_labels=True))
    assert result.group is None
    assert "undecided" in str(result)


def test_too_few_images_are_refused() -> None:
    few = images(20, (0,), 0, "J")
    with pytest.raises(ValueError, match="needs 64 images to train"):
        advise(Dataset("few", few, few, few, classes=("gamma", "L"), provenance="drawn"))


def test_advice_is_repeatable() -> None:
    first, second = (advise(dataset((0,)), seed=3) for _ in range(2))
    assert isinstance(first, Advice)
    assert first == second
