"""Keeps the memory that a step has freed for the next step, where the C library is glibc.

A training step makes and frees the same large arrays again and again. By default glibc gives each
back to the system, whose pages must then be fetched and zeroed anew: a fifth of a step's time.
"""

import ctypes

# Their numbers in glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8

_LARGEST_BYTES = (1 << 31) - 1
"""The largest value of the C int that mallopt takes."""

_TOP_PAD_BYTES = 64 << 20
"""The heap grows by at least this much at once."""


def keep_freed_memory() -> bool:
    """Change this process's allocator, for good; returns whether it could be done.

    The process then holds the most memory that it ever used until it ends, so it is for one whose
    steps are alike.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library: slower, and otherwise the same
        return False
    settings = {
        _M_MMAP_MAX: 0,  # no array gets a mapping of its own, which ends with it
        _M_ARENA_MAX: 1,  # threads that come later share the heap that is kept
        _M_TRIM_THRESHOLD: _LARGEST_BYTES,
        _M_TOP_PAD: _TOP_PAD_BYTES,
    }
    done = [mallopt(name, value) == 1 for name, value in settings.items()]
    return all(done)
