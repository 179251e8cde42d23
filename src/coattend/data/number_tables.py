"""Tables of numbers in text files, with bounds on what a damaged file can cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

NUMBER = 32  # characters, with the separator


def read_table(
    stream: IO[bytes], columns: int, most_rows: int, dtype: DTypeLike, separator: str | None = None
) -> NDArray[Any]:
    """Rows of ``columns`` numbers, up to one more than ``most_rows``; raises ValueError for anything else."""
    return np.loadtxt(
        _lines(stream, columns, separator), dtype=dtype, delimiter=separator, max_rows=most_rows + 1, ndmin=2
    )


def _lines(stream: IO[bytes], columns: int, separator: str | None) -> Iterator[str]:
    """Each line, the first of them counted; loadtxt holds the others to it."""
    longest, counted = NUMBER * columns, False
    while line := stream.readline(longest):
        if len(line) == longest:
            raise ValueError(f"a line of {longest:,} bytes or more")
        text = line.decode("latin-1")
        if not counted and text.strip():
            found, counted = len(text.split(separator)), True
            if found != columns:
                raise ValueError(f"rows of {found:,} numbers")
        yield text
    if not counted:
        raise ValueError("no rows")
