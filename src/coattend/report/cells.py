"""Cells of the ledger's tables: errors of a row, differences from another row, and the command that trains it."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Sequence

from coattend.data.rotated_mnist import current_name
from coattend.train.row import Pair, Row, difference, have_one_arithmetic, over_seeds, paired


def pairs_of(row: Row, base: Row | None) -> list[Pair]:
    """Return runs of equal seeds and equal arithmetic, where there is another row to compare with."""
    return [] if base is None or base is row else [pair for pair in paired(base, row) if have_one_arithmetic(pair)]


def against(pairs: Sequence[Pair]) -> str:
    """Return the difference of the headline errors in percentage points."""
    return f"{difference(pairs)}{', over images' if len(pairs) == 1 else ''}" if pairs else ""


def against_at_the_end(pairs: Sequence[Pair]) -> str:
    """Return the difference after the last epoch, free of the noise of choosing an epoch on a few validation images."""
    deltas = [row.result.error.last - base.result.error.last for base, row in pairs]
    return str(over_seeds(deltas)) if len(deltas) > 1 else ""


def mean_errors(row: Row, *protocols: str) -> list[str]:
    """Return the mean of the errors of each protocol, with the standard deviation over seeds."""
    return [mean_of([getattr(record.result.error, protocol) for record in row.records]) for protocol in protocols]


def mean_of(values: Sequence[float | None]) -> str:
    """Return the mean and the standard deviation of the known values."""
    known = [value for value in values if value is not None]
    spread = f" ± {statistics.stdev(known):.2f}" if len(known) > 1 else ""
    return f"{statistics.fmean(known):.2f}{spread}" if known else ""


def seeds_of(row: Row) -> str:
    """Return the seeds, separated by commas."""
    return ",".join(map(str, row.seeds))


def command_of(row: Row) -> str:
    """Return the command that trains the runs of a row, as Markdown."""
    kind = row.kind
    data = current_name(kind.data, kind.provenance)
    words = ["coattend", "compare", kind.model, "--recipe", kind.recipe, "--data", data, "--seeds", seeds_of(row)]
    return f"`{shlex.join([*words, *(word for setting in kind.settings for word in ('--set', setting))])}`"
