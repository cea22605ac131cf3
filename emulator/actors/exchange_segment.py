"""Memory that the chips of one host share with the engine's process, to exchange tokens in.

An anonymous file (memfd) of its maker, which the others open through /proc: private to the user,
and gone with the last process that has it. Areas are sparse: only what a step uses takes memory.

Tokens of a step lie in the order of the chips that dispatch them, so that a chip reads all of a
layer as one array. Who writes what, and when, is in `exchange_kernel`.
"""

import fcntl
import mmap
import os
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from emulator.actors.barrier_kernel import closing_of
from emulator.arrays import Float32s, Int32s, Int64s
from emulator.chip.commands import JoinExchange
from emulator.compute.exchange_sizes import OF_TOKENS, WORD_STRIDE
from emulator.errors import ChannelError

UInt32s = NDArray[np.uint32]

SOURCES, MEMBERS, SLOTS, LAYERS, TURNS, LIMIT = range(6)
"""Columns of `Areas.step`, of which the last is two."""


class Areas(NamedTuple):
    """A segment's arrays.

    Attributes:
        words: [words * stride] counters to wait at: chips that have dispatched, chips that have
            answered, then one of each rank, at its first chip, for their sums.
        waiting: [chips] 1 while the chip waits at a word.
        step: of the attempt: chips that dispatch tokens; all chips that take part; slots of a chip
            in a layer; layers with experts; turns that a wait gives way for before it sleeps;
            seconds and nanoseconds that it sleeps at most.
        first_token: [chips + 1] where the tokens of each chip begin.
        place: [layers, chips, experts] as `ExpertMap.place`.
        hidden: [tokens, hidden] rows to experts.
        places: [tokens, k] chip * slots + slot of each pair.
        answers: [tokens * k, hidden] the experts' outputs.
        sums: [2, tokens * groups * hidden] partial sums of ranks of several chips, in turn.
        counts: [layers, chips, slots] pairs by slot.
        sent: [layers, receivers, senders] tokens from chip to chip.
    """

    words: UInt32s
    waiting: Int32s
    step: Int64s
    first_token: Int64s
    place: Int32s
    hidden: Float32s
    places: Int32s
    answers: Float32s
    sums: Float32s
    counts: Int32s
    sent: Int32s


_NOBODY: Final = -1
"""No socket's number, which is never found closed."""

DISPATCHED: Final = 0
ANSWERED: Final = WORD_STRIDE


class ExchangeSegment:
    """A mapping of the segment of `sizes` in an open `file`, which it keeps until `close`.

    `handle` [areas + 1, 4] is for kernels: each area's address and lengths, and last whom `watch`
    has named. To hand over the arrays one by one takes as long as a kernel itself.

    Raises ChannelError for another file than that.
    """

    def __init__(self, file: int, sizes: JoinExchange) -> None:
        status, size_of = os.fstat(file), sizes.bytes_by_area()
        size = sum(size_of.values())
        found = (status.st_size, status.st_uid, status.st_ino)
        expected = (size, os.geteuid(), sizes.inode)
        if found != expected:
            raise ChannelError(f"exchange memory (bytes, user, inode) {found}, not {expected}")
        self.sizes = sizes
        self._file = file
        self._memory = mmap.mmap(file, size)
        self._rows: list[tuple[int, int]] = []  # first byte and size of areas of tokens
        arrays: dict[str, Any] = {}
        start = 0
        for name, (dtype, shape) in sizes.shapes().items():
            arrays[name] = np.ndarray(shape, dtype, self._memory, start)
            if name in OF_TOKENS and size_of[name]:
                self._rows.append((start, size_of[name]))
            start += size_of[name]
        self.areas = Areas(**arrays)
        self.handle = np.zeros((len(Areas._fields) + 1, 4), dtype=np.int64)
        for row, array in zip(self.handle[:-1], arrays.values(), strict=True):
            row[: 1 + array.ndim] = array.ctypes.data, *array.shape
        self.watch(_NOBODY)

    @classmethod
    def make(cls, sizes: JoinExchange) -> "ExchangeSegment":
        """A new segment, all zeros; its own `sizes` say where it is."""
        file = os.memfd_create("ultraserve-exchange", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.fchmod(file, 0o600)
        os.ftruncate(file, sum(sizes.bytes_by_area().values()))
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        path, inode = f"/proc/{os.getpid()}/fd/{file}", os.fstat(file).st_ino
        return cls(file, replace(sizes, path=path, inode=inode))

    @classmethod
    def join(cls, sizes: JoinExchange) -> "ExchangeSegment":
        """Map another process's segment; raises OSError where it is gone."""
        segment = cls(os.open(sizes.path, os.O_RDWR | os.O_CLOEXEC), sizes)
        segment.close()
        return segment

    def watch(self, socket: int) -> None:
        """Have waits end in this process when the other end of `socket` has closed."""
        self.handle[-1, 0] = closing_of(socket)

    @property
    def bytes_per_token(self) -> int:
        """Memory that a token of a step takes at most."""
        return sum(size for _, size in self._rows) // self.sizes.tokens

    def forget_rows(self) -> None:
        """Give the memory of all tokens' rows back to the system, between steps."""
        for start, size in self._rows:
            self._memory.madvise(mmap.MADV_REMOVE, start, size)

    def close(self) -> None:
        """Let no other process join; the mapping stays as long as its arrays. Idempotent."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)
