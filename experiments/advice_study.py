"""Does ``coattend advise`` recommend the right group on datasets of known symmetry?

    OMP_NUM_THREADS=1 python -m experiments.advice_study --plankton plankton48.npz --results results/advice_study.jsonl

Rotated digits (C4), upright digits (none), plankton (D4; left out without its file), upright digits of which a random
half is mirrored (D1), and upright digits with random labels (undecided), three seeds each. Every result is written as
soon as it is known; started again, the program continues. Exits with 1 if a recommendation is wrong.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import tyro

from coattend.data import Dataset, Split, load_data
from coattend.train.advice import advise
from experiments.rows import continued

RIGHT = {
    "rotated digits": "C4",
    "upright digits": "none",
    "plankton": "D4",
    "mirrored digits": "D1",
    "random labels": None,
}


@dataclass(frozen=True)
class Options:
    """Arguments of the program.

    Args:
        plankton: The .npz file with images and labels of plankton.
        seeds: Seeds of the probes.
        results: File of the results.
    """

    plankton: Path | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    results: Path = Path("advice_study.jsonl")


@dataclass(frozen=True)
class Result:
    """The recommendation for a dataset, and the skill of the probe in each pose."""

    data: str
    seed: int
    group: str | None
    sure: bool
    accuracy: float
    skills: tuple[float | None, ...]


def dataset(name: str, options: Options) -> Dataset:
    """Return one of the datasets."""
    if name == "rotated digits":
        return load_data("rotated-mnist")
    if name == "plankton":
        assert options.plankton is not None
        return load_data(options.plankton)
    upright = load_data("mnist")
    generator = torch.Generator().manual_seed(0)

    def changed(split: Split) -> Split:
        if name == "mirrored digits":
            mirrored = torch.rand(len(split), generator=generator) < 0.5
            images = torch.where(mirrored[:, None, None, None], split.images.flip(-1), split.images)
            return Split(images, split.labels)
        return Split(split.images, torch.randint(10, (len(split),), generator=generator))

    if name == "upright digits":
        return upright
    train, valid, test = (changed(part.in_memory()) for part in upright.splits().values())
    return replace(upright, train=train, valid=valid, test=test)


def study(name: str, seed: int, options: Options) -> Result:
    """Ask for advice once."""
    advice = advise(dataset(name, options), seed=seed)
    skills = tuple(None if math.isnan(pose.skill) else round(pose.skill, 4) for pose in advice.poses)
    result = Result(name, seed, advice.group, advice.sure, round(advice.poses[0].accuracy, 4), skills)
    print(result, flush=True)
    return result


def main() -> None:
    """Run the study and print what was right."""
    options = tyro.cli(Options, description=__doc__)
    names = [name for name in RIGHT if name != "plankton" or options.plankton is not None]
    cases = [(name, seed) for seed in options.seeds for name in names]
    rows = continued(
        options.results, Result, cases, lambda row: (row.data, row.seed), lambda case: study(*case, options)
    )
    right = {name: [row.group == RIGHT[name] for row in rows if row.data == name] for name in names}
    for name, results in right.items():
        print(f"{name}: right {sum(results)} of {len(results)}")
    sys.exit(0 if all(all(results) for results in right.values()) else 1)


if __name__ == "__main__":
    main()
