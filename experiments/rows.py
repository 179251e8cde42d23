"""Results of a study: one JSON object per line, one frozen dataclass per object."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from coattend._files import write_atomically

Row = TypeVar("Row")
Case = TypeVar("Case", bound=Hashable)


def read_rows(path: Path, kind: type[Row]) -> list[Row]:
    """Read the results of a study; there are none without a file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [kind(**json.loads(line)) for line in lines]


def write_rows(path: Path, rows: Sequence[Any]) -> None:
    """Write all results of a study, so that the file is complete at any time."""
    write_atomically(path, "".join(json.dumps(dataclasses.asdict(row)) + "\n" for row in rows).encode())


def continued(
    path: Path, kind: type[Row], cases: Iterable[Case], case_of: Callable[[Row], Case], compute: Callable[[Case], Row]
) -> list[Row]:
    """Compute the results that a file does not have yet, write each as soon as it is known, and return all."""
    rows = read_rows(path, kind)
    done = {case_of(row) for row in rows}
    for case in cases:
        if case not in done:
            rows.append(compute(case))
            write_rows(path, rows)
    return rows
