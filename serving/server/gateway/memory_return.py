"""Returns freed memory to the system, of which glibc keeps most.

free() returns only a heap's end: 3,000 half heads of 30 kB left 61 MiB behind, and 7 after
malloc_trim(3), which took 4 ms. A thread calls it when GROWN_BYTES more are resident than malloc
has given out: what is held counts as given out whenever one looks, and is beyond it once it is
free.

Large pieces are mapped apart, as glibc does until it first frees one (mallopt(3),
M_MMAP_THRESHOLD): four bodies of 16 MiB at once took 156 MiB and left 43; apart, 100 and 5.
"""

import asyncio
import contextlib
import ctypes
import logging
from collections.abc import Callable
from typing import ClassVar, Final

import psutil

logger = logging.getLogger(f"vllm.{__name__}")  # below a name that the server's process shows

LOOK_EVERY_S: Final = 10.0

GROWN_BYTES: Final = 16 * 2**20
"""Less is not worth it. Assumed."""


_MMAP_THRESHOLD: Final = -3
"""M_MMAP_THRESHOLD of malloc.h."""

_LARGE_BYTES: Final = 2**20


def keep_large_apart() -> None:
    """Have malloc map every large piece by itself."""
    _call_glibc("mallopt", _MMAP_THRESHOLD, _LARGE_BYTES)


def trim() -> None:
    """Return the free pages of every heap."""
    _call_glibc("malloc_trim", 0)


class _HeapFigures(ctypes.Structure):
    """mallinfo2 of malloc.h."""

    _fields_: ClassVar = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def used_bytes() -> int:
    """Bytes that malloc has given out; 0 where it does not say (glibc before 2.33)."""
    function = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if function is None:
        return 0
    function.restype = _HeapFigures
    figures = function()
    return int(figures.uordblks + figures.hblkhd)


def _call_glibc(name: str, *numbers: int) -> None:
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*numbers)


def resident_bytes() -> int:
    """Resident bytes of this process."""
    return int(psutil.Process().memory_info().rss)


class MemoryReturn:
    """Trims this process between `start` and `stop`."""

    def __init__(
        self,
        *,
        look_every_s: float = LOOK_EVERY_S,
        resident: Callable[[], int] = resident_bytes,
        used: Callable[[], int] = used_bytes,
        trim: Callable[[], None] = trim,
    ) -> None:
        self._look_every_s = look_every_s
        self._resident = resident
        self._used = used
        self._trim = trim
        self._least_beyond_bytes = 0  # since the last trim
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to watch."""
        keep_large_apart()
        self._least_beyond_bytes = self._beyond_bytes()
        self._looking = asyncio.create_task(self._keep_looking())

    async def stop(self) -> None:
        """Stop watching; idempotent."""
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(self._look_every_s)
            try:
                await asyncio.to_thread(self.look)
            except Exception:
                logger.exception("memory was not given back")

    def look(self) -> None:
        """Trim if what is resident beyond what is in use has grown by GROWN_BYTES above its least
        since the last trim.
        """
        beyond_bytes = self._beyond_bytes()
        if beyond_bytes < self._least_beyond_bytes + GROWN_BYTES:
            self._least_beyond_bytes = min(self._least_beyond_bytes, beyond_bytes)
            return
        self._trim()
        self._least_beyond_bytes = self._beyond_bytes()

    def _beyond_bytes(self) -> int:
        return self._resident() - self._used()
