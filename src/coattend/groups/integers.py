"""Which arguments count as whole numbers."""

from __future__ import annotations

import operator


def whole_number(value: object) -> int | None:
    """Return a whole number of any type (of Python, of NumPy, of torch) as an int, and None for anything else.

    Truth values are none, and 2.0 is none either: where a count or an index is expected, both are mistakes.
    """
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
