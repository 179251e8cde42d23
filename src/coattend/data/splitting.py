"""Split images into those to train, validate and test on, by a fixed seed, without dividing groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coattend.data.streaming import DataError

SEED = 0
SHARE = 0.1  # of each class, to validate and to test on

Indices = NDArray[np.int64]


def split_by_class(
    path: Path, labels: NDArray[np.int64], classes: Sequence[str], wanted: Sequence[str]
) -> dict[str, Indices]:
    """Split off a tenth of each class for every wanted split, at least one image; the rest is to train on."""
    drawn = np.random.RandomState(SEED)
    chosen: dict[str, list[Indices]] = {split: [] for split in ("train", *wanted)}
    for label, name in enumerate(classes):
        members = drawn.permutation(np.flatnonzero(labels == label))
        held = max(1, round(SHARE * len(members)))
        if len(members) <= len(wanted):
            noun = "images of each class" if len(classes) > 1 else "images"
            raise DataError(
                f"{path}: expected at least {len(wanted) + 1} {noun}, one per split, got {len(members)}"
                + (f" of {name!r}." if len(classes) > 1 else ".")
            )
        cuts = [len(members) - held * left for left in range(len(wanted), 0, -1)]
        for split, part in zip(chosen, np.split(members, cuts), strict=True):
            chosen[split].append(part)
    return {split: np.sort(np.concatenate(parts)) for split, parts in chosen.items()}


def split_by_group(
    path: Path, labels: NDArray[np.int64], classes: Sequence[str], groups: Sequence[str], wanted: Sequence[str]
) -> dict[str, Indices]:
    """Split whole groups so that every split gets about its share of every class.

    The largest groups are assigned first, each to the split that then is closest to its share.
    """
    members: dict[str, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        members[group].append(index)
    names = np.random.RandomState(SEED).permutation(sorted(members))
    order = sorted(names, key=lambda name: -len(members[name]))
    splits = ("train", *wanted)
    shares = np.array([1 - SHARE * len(wanted), *(SHARE for _ in wanted)])
    total = np.bincount(labels, minlength=len(classes))
    goal = shares[:, None] * total
    filled = np.zeros_like(goal)
    assigned: dict[str, list[int]] = {split: [] for split in splits}
    for name in order:
        counts = np.bincount(labels[members[name]], minlength=len(classes))
        # the largest remaining need of the group's classes, relative to what the split is to get
        need = (np.maximum(goal - filled, 0) / np.maximum(goal, 1e-9) * counts).sum(1)
        chosen = int(need.argmax())
        filled[chosen] += counts
        assigned[splits[chosen]] += members[name]
    for row in filled:
        for number in np.flatnonzero((row == 0) & (total > 0)).tolist():
            having = len({groups[i] for i in np.flatnonzero(labels == number).tolist()})
            what = f"the class {classes[number]!r}" if len(classes) > 1 else "images"
            raise DataError(
                f"{path}: {what} cannot be in all of {', '.join(splits)} without dividing a group, it occurs in "
                f"{having} of {len(members)} groups; add groups, or a column split."
            )
    return {split: np.array(sorted(indices)) for split, indices in assigned.items()}


def check_groups(path: Path, groups: Mapping[str, Sequence[str] | None]) -> None:
    """Raise if a group is in two of the given splits."""
    splits = {split: set(names) for split, names in groups.items() if names is not None}
    for first in splits:
        for second in splits:
            shared = sorted(splits[first] & splits[second]) if first < second else []
            if shared:
                raise DataError(
                    f"{path}: {len(shared)} groups are in both {first} and {second}, for example {shared[0]!r}; scores "
                    "would be too good: assign every group to one split."
                )
