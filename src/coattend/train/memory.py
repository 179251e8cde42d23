"""Large maps on CPUs: memory that is freed is kept for the next step instead of going back to the system."""

from __future__ import annotations

import ctypes
import sys

# names of <malloc.h>, and what they are set to
_TRIM_THRESHOLD, _NEVER = -1, -1
_TOP_PAD, _AT_ONCE = -2, 1 << 28
_MMAP_MAX, _NONE = -4, 0


def keep_freed_memory() -> bool:
    """Tell the C library of this process to keep what it has once been given; whether it can be told.

    By default glibc takes every block beyond some megabytes from the system and returns it when it is freed, and the
    first touch of fresh pages costs more than the arithmetic on them: a tenth of a training step, half of an
    evaluation. The price is that the process stays as large as it has once been.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    settings = ((_TRIM_THRESHOLD, _NEVER), (_TOP_PAD, _AT_ONCE), (_MMAP_MAX, _NONE))
    return mallopt is not None and all(mallopt(*setting) == 1 for setting in settings)
