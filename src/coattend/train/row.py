"""Rows of tables: runs that differ in the seed only, and the difference of two rows, paired over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from coattend.models.records import COUNT, FINITE, TEXT, TEXTS, RunError, checked, read_json
from coattend.train.record import Record
from coattend.train.run import Kind

CONFIDENCE = 0.95
RESAMPLES = 10_000
COMPARISON = {"recipe": TEXT, "data": TEXT, "provenance": TEXT, "folders": TEXTS}
ROW = {"model": TEXT, "parameters": COUNT, "protocol": TEXT, "seconds_per_epoch": FINITE}

T = TypeVar("T")
Pair = tuple[Record, Record]


class IncomparableError(RunError):
    """Runs whose errors cannot be compared."""


@dataclass(frozen=True)
class Difference:
    """Error of one network minus the error of another, in percentage points, with a 95% interval."""

    mean: float
    low: float
    high: float
    method: str

    @property
    def verdict(self) -> str:
        """The difference in one word."""
        return "better" if self.high < 0 else "worse" if self.low > 0 else "undecided"

    def __str__(self) -> str:
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}] {self.verdict}"


@dataclass(frozen=True)
class Row:
    """Finished runs of one kind, by seed, and the difference from the first row of the table."""

    records: tuple[Record, ...]
    against_first: Difference | None = None

    @property
    def kind(self) -> Kind:
        """What the runs have in common."""
        return self.records[0].result.kind

    @property
    def model(self) -> str:
        """The network's name with its options."""
        return self.kind.model

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the runs."""
        return tuple(record.result.seed for record in self.records)

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return self.records[0].result.parameters

    @property
    def protocol(self) -> str:
        """How the epoch of the headline error was chosen."""
        return self.records[0].result.protocol

    @property
    def errors(self) -> tuple[float, ...]:
        """The headline error of every run in percent."""
        return tuple(record.result.test_error for record in self.records)

    @property
    def mean(self) -> float:
        """The mean of the errors."""
        return statistics.fmean(self.errors)

    @property
    def spread(self) -> float | None:
        """Standard deviation of the errors; None with one seed."""
        return statistics.stdev(self.errors) if len(self.errors) > 1 else None

    @property
    def seconds_per_epoch(self) -> float:
        """The median over the runs."""
        return statistics.median(record.result.seconds_per_epoch for record in self.records)

    def to_dict(self) -> dict[str, Any]:
        """Return the row as it is in comparison.json."""
        names = ("model", "parameters", "errors", "protocol", "seconds_per_epoch")
        against = None if self.against_first is None else asdict(self.against_first)
        return {**{name: getattr(self, name) for name in names}, "against_first": against}


def grouped(items: Iterable[T], kind: Callable[[T], Kind]) -> dict[Kind, list[T]]:
    """Return the items of every kind, in the order of their first."""
    groups: dict[Kind, list[T]] = {}
    for item in items:
        groups.setdefault(kind(item), []).append(item)
    return groups


def rows_of(records: Iterable[Record]) -> dict[Kind, Row]:
    """Return finished runs as rows."""
    groups = grouped(records, lambda record: record.result.kind)
    return {kind: Row(tuple(sorted(runs, key=lambda r: r.result.seed))) for kind, runs in groups.items()}


def paired(base: Row, row: Row) -> list[Pair]:
    """Return the runs of both rows with equal seeds, ``base`` first."""
    others = {record.result.seed: record for record in base.records}
    return [(others[record.result.seed], record) for record in row.records if record.result.seed in others]


def have_one_arithmetic(pair: Pair) -> bool:
    """Whether both runs were computed alike, as far as it was recorded; else their difference is also the machines'."""
    return len({record.arithmetic for record in pair} - {None}) < 2


def difference(pairs: Sequence[Pair]) -> Difference:
    """Return the difference of the headline errors, paired over seeds; with one seed, over the test images."""
    if not pairs:
        raise IncomparableError("not compared: no seed in common with the first network")
    if len(pairs) > 1:
        return over_seeds([other.result.test_error - base.result.test_error for base, other in pairs])
    base, other = pairs[0]
    if base.tested is None or other.tested is None:
        raise IncomparableError("not compared: with one seed, predictions.npz of both runs is needed")
    if base.tested != other.tested:
        raise IncomparableError(
            f"not compared: {other.source} has {other.tested} test images, {base.source} has {base.tested}"
        )
    return over_images(base.misclassified(), other.misclassified())


def over_seeds(deltas: Sequence[float]) -> Difference:
    """Return Student's interval for the mean of paired differences."""
    limits = interval(deltas)
    if limits is None:
        raise IncomparableError("not compared: an interval over seeds takes at least two")
    return Difference(statistics.fmean(deltas), *limits, f"paired over {len(deltas)} seeds")


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return Student's 95% interval of a mean; None for one value."""
    from scipy import stats  # type: ignore[import-untyped]

    if len(values) < 2:
        return None
    mean, error = statistics.fmean(values), statistics.stdev(values) / len(values) ** 0.5
    reach = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1)) * error  # t.interval is nan for equal values
    return mean - reach, mean + reach


def over_images(base_wrong: NDArray[np.bool_], other_wrong: NDArray[np.bool_]) -> Difference:
    """Return the percentile interval of the difference under resampling of the test images.

    A difference per image has three values, so that a resample is one multinomial draw: scipy.stats.bootstrap would
    draw every image.
    """
    delta = 100.0 * (other_wrong.astype(np.int8) - base_wrong.astype(np.int8))
    values, counts = np.unique(delta, return_counts=True)
    draws = np.random.default_rng(0).multinomial(len(delta), counts / len(delta), size=RESAMPLES)
    low, high = np.quantile(draws @ values / len(delta), [0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2])
    return Difference(float(delta.mean()), float(low), float(high), "one seed: bootstrap over test images")


def read_comparison(path: Path) -> tuple[str, ...]:
    """Read the networks of comparison.json, in their order."""
    comparison = checked(path, read_json(path), {**COMPARISON, "rows": ("a list", lambda v: isinstance(v, list))})
    rows = [checked(path, row, ROW, f"rows[{number}].") for number, row in enumerate(comparison["rows"])]
    return tuple(row["model"] for row in rows)
