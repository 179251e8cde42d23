"""The memory of a process that trains on CPUs."""

from __future__ import annotations

import ctypes
import sys

# names of <malloc.h> and their values
_TRIM_THRESHOLD, _NEVER = -1, -1
_TOP_PAD, _AT_ONCE = -2, 1 << 28
_MMAP_MAX, _NONE = -4, 0


def keep_freed_memory() -> bool:
    """Make the C library of this process keep freed memory for the next allocation; return whether it supports that.

    By default glibc takes every block above some megabytes from the system and returns it when it is freed, and the
    first access to new pages costs more than the arithmetic on them: a tenth of a training step, half of an
    evaluation. In exchange the process stays as large as it was at its largest. It concerns the whole process, so the
    command line calls it and the library does not.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    settings = ((_TRIM_THRESHOLD, _NEVER), (_TOP_PAD, _AT_ONCE), (_MMAP_MAX, _NONE))
    return mallopt is not None and all(mallopt(*setting) == 1 for setting in settings)
