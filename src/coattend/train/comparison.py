"""Train several networks side by side and compare each with the first."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coattend._files import write_atomically
from coattend.train.job import Job, jobs_of, train_in_turn
from coattend.train.processes import is_first
from coattend.train.record import Record
from coattend.train.row import IncomparableError, Row, difference, paired
from coattend.train.run_folder import RunFolder


@dataclass(frozen=True)
class Comparison:
    """Networks trained by one recipe with the same seeds: a row each, compared with the first."""

    recipe: str
    data: str
    provenance: str
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]
    folders: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the content of comparison.json."""
        names = ("recipe", "data", "provenance", "seeds", "folders")
        return {**{name: getattr(self, name) for name in names}, "rows": [row.to_dict() for row in self.rows]}


def compare(
    models: Sequence[str],
    seeds: Sequence[int],
    recipe_name: str,
    root: str | Path,
    *,
    data: str | None = None,
    settings: Sequence[str] = (),
) -> Comparison | None:
    """Train every model with every seed, continuing what is there, and compare the others with the first.

    In training by several processes, only the first returns the comparison; the others return None.
    """
    return compare_jobs(jobs_of(models, seeds, recipe_name, root, data=data, settings=settings))


def compare_jobs(jobs: Sequence[Job], run: Callable[[Sequence[Job]], None] = train_in_turn) -> Comparison | None:
    """Train the runs of a grid and compare its networks with the first, as :func:`compare` does.

    ``run`` trains all jobs, by default one after the other in this process; :mod:`coattend.grid` has others.
    """
    if not jobs:
        raise ValueError("compare expects the names of networks, the first to measure the others against, and seeds.")
    run(jobs)
    if not is_first():
        return None
    folders: dict[str, list[RunFolder]] = {}
    for job in jobs:
        folders.setdefault(job.model, []).append(job.folder)
    first, *others = (_row([folder.record() for folder in runs]) for runs in folders.values())
    compared = (first, *(replace(row, against_first=difference(paired(first, row))) for row in others))
    paths = tuple(str(folder.path) for runs in folders.values() for folder in runs)
    kind, seeds = first.kind, tuple(dict.fromkeys(job.seed for job in jobs))
    comparison = Comparison(kind.recipe_name, Path(kind.data).name, kind.provenance, seeds, compared, paths)
    write_atomically(jobs[0].root / "comparison.json", (json.dumps(comparison.to_dict(), indent=1) + "\n").encode())
    return comparison


def _row(records: Sequence[Record]) -> Row:
    kinds = {record.result.kind for record in records}
    if len(kinds) > 1:  # precision=auto, on machines with and without bfloat16
        names = " and ".join(sorted(kind.recipe_name for kind in kinds))
        raise IncomparableError(
            f"runs of {records[0].result.model} were trained by {names}; choose one precision for all seeds, for "
            "example with --set precision=32-true."
        )
    return Row(tuple(records))
