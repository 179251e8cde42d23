"""Whether rotation or reflection is a symmetry of a dataset: a small probe, tested on images in other poses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coattend.data import Dataset, load_data
from coattend.data.augmentation import rotate_batch
from coattend.data.dataset import AnySplit
from coattend.groups import FiniteGroup, get_group, transform_image
from coattend.nn.observe import evaluating

PIXELS = 16  # images are made about so small: what a class looks like survives, and the probe is quick
IMAGES = 4000  # to train on, and at most half as many to test on
BATCH = 64
FIRST_STEPS, SECOND_STEPS = 200, 800
TURNS_HOLD = 0.5  # the share of its skill that the first probe keeps on turned images where turns are a symmetry
MIRRORS_HOLD = 0.75  # the same for mirrors and the second probe
LEAST_SIGMAS = 4.0  # by which the probe has to exceed guessing
NORMAL_95 = 1.96
ANGLE = 15  # degrees between the turns of the envelope
WITHOUT = "none"
# Generators in D4, largest group first.
GROUPS = {"D4": (1, 4), "C4": (1,), "D2": (2, 4), "C2": (2,), "D1": (4,), WITHOUT: (0,)}


@dataclass(frozen=True)
class PoseEvidence:
    """How well the probe recognizes images in one pose.

    - accuracy: share of the test images that it recognizes
    - skill: the same, with guessing as 0 and the images as they are as 1; low, high: its 95% interval
    - threshold: the least skill with which the pose counts as one that occurs in the data
    """

    element: str
    accuracy: float
    skill: float
    low: float
    high: float
    threshold: float

    @property
    def holds(self) -> bool:
        """Whether the probe keeps enough of its skill."""
        return self.skill >= self.threshold

    @property
    def is_sure(self) -> bool:
        """Whether the interval is on one side of the threshold."""
        return self.low >= self.threshold or self.high < self.threshold


@dataclass(frozen=True)
class Advice:
    """A recommended group, ``"none"`` for a plain network, None if the images do not tell, and the evidence.

    - guessing: the accuracy of always answering the most frequent class
    - poses: one line per element of D4, and one for a turn by 45 degrees
    - sure: whether every line is on one side of the threshold
    - envelope: the skill of the first probe on images turned counter-clockwise, by angle in degrees: the poses that
      occur together in the data
    """

    data: str
    group: str | None
    sure: bool
    guessing: float
    images: int
    poses: tuple[PoseEvidence, ...]
    envelope: Mapping[int, float]

    @property
    def reach(self) -> int:
        """The largest angle in degrees up to which turns in both directions hold."""
        held = 0
        while held < 180 and min(self.envelope[held + ANGLE], self.envelope[-held - ANGLE]) >= TURNS_HOLD:
            held += ANGLE
        return held

    def __str__(self) -> str:
        """Return the recommendation as a sentence."""
        if self.group is None:
            return (
                f"undecided: the probe recognizes {100 * self.poses[0].accuracy:.1f} % of the images, guessing "
                f"{100 * self.guessing:.1f} %, so that its errors in other poses show nothing; check the labels, or "
                "use more images."
            )
        certainty = "sure" if self.sure else "not sure: a pose is near the threshold"
        small = f"; turns by up to {self.reach}° occur, augment with rotate={self.reach}" if 0 < self.reach < 90 else ""
        if self.group == WITHOUT:
            return f"no symmetry ({certainty}): images in other poses are not recognized; use a plain network{small}."
        finer = " or C8, a turn by 45° holds as well" if self.group == "C4" and self.poses[-1].holds else ""
        finer = " or D8, a turn by 45° holds as well" if self.group == "D4" and self.poses[-1].holds else finer
        return f"{self.group}{finer} ({certainty}): images in its poses are recognized as well as the others{small}."


def advise(data: str | Path | Dataset, seed: int = 0) -> Advice:
    """Recommend a group for a dataset, from how a small plain network sees it in other poses.

    A network is trained on the images as they are. If a move leads to images that occur in the data, it recognizes
    moved test images as well; if a move changes what an image shows, or makes images that do not occur, it does not.

    1. A first probe sees each image a few times only, before it prefers the poses in which single images happen to be.
       Rotations hold if it keeps half of its skill on rotated images.
       The envelope is its skill on images turned by any angle: a range of small turns is one to augment with.
    2. A second one is trained longer, on images in all these rotations, and so knows the classes in detail. Mirrors
       hold if it keeps three quarters of its skill on mirrored images: the digits 0, 1 and 8 alone give it a half.

    ``data`` is a dataset, or the name or path of one, as in :func:`coattend.data.load_data`.
    """
    dataset = data if isinstance(data, Dataset) else load_data(data)
    group = get_group("D4")
    with torch.random.fork_rng(devices=[]), _one_thread():
        torch.manual_seed(seed)
        images, labels = _small(dataset.train, IMAGES)
        test, targets = _small(dataset.test if len(dataset.test) else dataset.valid, IMAGES // 2)
        if min(len(images), len(test)) < BATCH:
            raise ValueError(
                f"advise needs {BATCH} images to train and as many to test on, got {len(images)} and {len(test)}."
            )
        scale = images.std().clamp(min=1e-6)
        images, test = images / scale, test / scale
        guessing = float(targets.bincount().max()) / len(targets)
        classes = len(dataset.classes)
        first = _probe(images, labels, classes, FIRST_STEPS, group, (0,))
        turns = _evidence(first, test, targets, guessing, TURNS_HOLD)
        rotations = _largest(turns, (group.generate((1,)), group.generate((2,)), (0,)))
        second = _probe(images, labels, classes, SECOND_STEPS, group, rotations)
        mirrors = _evidence(second, test, targets, guessing, MIRRORS_HOLD)
        envelope = _envelope(first, test, targets, guessing)
    poses = (*turns[:4], *mirrors[4:8], turns[8])
    return _advice(dataset.name, poses, guessing, len(targets), group, envelope)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one thread: layers this small gain nothing by more, which on a busy machine wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _largest(poses: tuple[PoseEvidence, ...], subgroups: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the first subgroup whose elements hold; the identity holds even where the probe has learned nothing."""
    return next(subgroup for subgroup in subgroups if all(poses[g].holds for g in subgroup if g))


def _advice(
    name: str,
    poses: tuple[PoseEvidence, ...],
    guessing: float,
    images: int,
    group: FiniteGroup,
    envelope: Mapping[int, float],
) -> Advice:
    deviation = math.sqrt(guessing * (1 - guessing) / images)
    if poses[0].accuracy < guessing + LEAST_SIGMAS * deviation:
        return Advice(name, None, False, guessing, images, poses, envelope)
    subgroups = {group.generate(generators): title for title, generators in GROUPS.items()}
    chosen = subgroups[_largest(poses, subgroups)]
    return Advice(name, chosen, all(pose.is_sure for pose in poses[:8]), guessing, images, poses, envelope)


def _small(split: AnySplit, most: int) -> tuple[Tensor, Tensor]:
    """Return images of about 16 pixels, as numbers, with their labels, in random order."""
    part = split.at(torch.randperm(len(split))[:most]).in_memory()
    images = part.images.float()
    factor = max(1, round(min(images.shape[-2:]) / PIXELS))
    images = F.avg_pool2d(images, factor)
    size = min(images.shape[-2:])
    top, left = ((n - size) // 2 for n in images.shape[-2:])
    square = images[..., top : top + size, left : left + size]
    return square - square.mean(), part.labels


def _probe(
    images: Tensor, labels: Tensor, classes: int, steps: int, group: FiniteGroup, poses: tuple[int, ...]
) -> nn.Module:
    """Train a plain network on images in random poses among the given ones."""
    layers: list[nn.Module] = []
    channels = images.shape[1]
    for width, stride in ((16, 1), (32, 2), (32, 1), (64, 2)):
        conv = nn.Conv2d(channels, width, 3, stride, 1, bias=False, dtype=torch.float32)
        layers += [conv, nn.BatchNorm2d(width, dtype=torch.float32), nn.ReLU()]
        channels = width
    last = nn.Linear(channels, classes, dtype=torch.float32)
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), last)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    for step in range(steps):
        index = torch.randint(len(images), (BATCH,))
        batch = transform_image(images[index], group, poses[step % len(poses)])
        optimizer.zero_grad()
        F.cross_entropy(model(batch), labels[index], label_smoothing=0.1).backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def _evidence(
    probe: nn.Module, images: Tensor, labels: Tensor, guessing: float, threshold: float
) -> tuple[PoseEvidence, ...]:
    """Measure the probe on images in the eight poses of D4, and turned by 45 degrees."""
    square, fine = get_group("D4"), get_group("C8")
    moves = [(square, g) for g in square.elements] + [(fine, 1)]
    with evaluating(probe):
        right = [
            torch.cat([probe(transform_image(part, group, g)).argmax(1) for part in images.split(500)]) == labels
            for group, g in moves
        ]
    return tuple(
        _pose(group.describe(g), r.double(), right[0].double(), guessing, threshold)
        for (group, g), r in zip(moves, right, strict=True)
    )


def _envelope(probe: nn.Module, images: Tensor, labels: Tensor, guessing: float) -> dict[int, float]:
    """Return the skill of the probe on images turned by every angle, of 0 degrees 1; nan if it only guesses."""
    recognized = {}
    with evaluating(probe):
        for degrees in range(-180, 181, ANGLE):
            moved = rotate_batch(images, torch.tensor([math.radians(degrees)]))
            answers = torch.cat([probe(part).argmax(1) for part in moved.split(500)])
            recognized[degrees] = float((answers == labels).double().mean())
    gain = recognized[0] - guessing
    return {degrees: (share - guessing) / gain if gain > 0 else math.nan for degrees, share in recognized.items()}


def _pose(element: str, right: Tensor, reference: Tensor, guessing: float, threshold: float) -> PoseEvidence:
    """Return the skill in a pose; its interval from the variance of the ratio over test images, to first order."""
    gain = float(reference.mean()) - guessing
    if gain <= 0:
        return PoseEvidence(element, float(right.mean()), math.nan, -math.inf, math.inf, threshold)
    skill = (float(right.mean()) - guessing) / gain
    error = float((right - skill * reference).std()) / math.sqrt(len(right)) / gain
    interval = skill - NORMAL_95 * error, skill + NORMAL_95 * error
    return PoseEvidence(element, float(right.mean()), skill, *interval, threshold)
