"""Keeps memory that a step has freed for the next step, on glibc.

A training step allocates and frees the same large arrays. By default glibc returns each to the
system, whose pages must then be fetched and zeroed anew: a fifth of a step's time.
"""

import ctypes

# Their numbers in glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8

_LARGEST_BYTES = (1 << 31) - 1
"""The largest value of the C int that mallopt takes."""

_TOP_PAD_BYTES = 64 << 20
"""The heap grows by at least this much at once."""


def keep_freed_memory() -> bool:
    """Configure this process's allocator, for good; returns whether it worked.

    The process then holds its peak memory until its end, so it suits processes whose steps are
    alike.
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
