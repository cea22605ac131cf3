"""Computed prompts whose KV another pool's engine has not read: their blocks stay until it has."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from emulator.arrays import Bools, Int32s, Int64s
from serving.simulator import compiled_schedulers as kernel
from serving.simulator.scheduler_arrays import NEVER_NS, Records

if TYPE_CHECKING:
    from serving.simulator.lockstep_schedulers import LockstepSchedulers


class _HeldBlocks(NamedTuple):
    """Of a rank; which ones, where a prefix cache tells them apart: [1, 1, blocks]."""

    rank: int
    blocks: int
    numbers: Int32s | None


class UnreadPrompts:
    """Those of one engine, whose steps are made one by one; `decoded` and `failed` are requests of
    the other pool: REQUEST [requests], and which of them have ended in error [requests].
    """

    def __init__(self, schedulers: "LockstepSchedulers", decoded: Records, failed: Bools) -> None:
        self._schedulers = schedulers
        self._decoded = decoded
        self._failed = failed
        self._held: dict[int, _HeldBlocks] = {}
        self._requests = np.zeros(0, dtype=np.int64)
        """Those whose blocks are held: [held]."""
        self.were_lost = False
        """Since that was last set to False: engines may wait for what does not come."""
        self.blocks: Int64s = np.zeros(len(schedulers.arrays.ranks), dtype=np.int64)
        """Of each rank: [ranks]."""

    def __len__(self) -> int:
        return len(self._held)

    def keep(self, rows: int) -> None:
        """Before a step of so many rows gives its tokens: the prompts that then end stay."""
        arrays, cache = self._schedulers.arrays, self._schedulers.cache
        ranks, prompts = arrays.rows["rank"][:rows], arrays.rows["request"][:rows]
        of = arrays.requests
        ends = ~of["is_prefill"][prompts] & (of["tokens_left"][prompts] <= 1)
        for rank, request in zip(ranks[ends].tolist(), prompts[ends].tolist(), strict=True):
            blocks, numbers = int(of["blocks"][request]), None
            if cache is None:
                arrays.ranks["free_blocks"][rank] -= blocks
            else:
                seat = of["seat"][request]
                numbers = cache.table[rank, seat, :blocks].reshape(1, 1, -1).copy()
                cache.blocks["references"][rank, numbers] += 1
            self._held[request] = _HeldBlocks(rank, blocks, numbers)
            self.blocks[rank] += blocks
        if ends.any():
            self._note_requests()

    def release(self, now_ns: int) -> None:
        """Free the blocks of those that have been read by now, the first one first, or are not
        read any more.
        """
        arrays, cache, requests = self._schedulers.arrays, self._schedulers.cache, self._requests
        there_ns = self._decoded["there_ns"][requests]
        over = (there_ns <= now_ns) | self._failed[requests]
        if not over.any():
            return
        in_order = np.argsort(there_ns[over], kind="stable")
        for request in requests[over][in_order].tolist():
            rank, blocks, numbers = self._held.pop(request)
            self.blocks[rank] -= blocks
            if numbers is None or cache is None:
                arrays.ranks["free_blocks"][rank] += blocks
            else:
                kernel.let_go(arrays, cache, rank, numbers)
        self._note_requests()

    def lose(self, ranks: Int64s) -> None:
        """What ranks held is gone: prompts that lay there are computed where they are decoded, at
        once: nothing of them is on its way any more. Those that were pushed are there.
        """
        gone = [request for request, held in self._held.items() if held.rank in ranks]
        for request in gone:
            del self._held[request]
        lost = [request for request in gone if not self._decoded["is_pushed"][request]]
        self._note_requests()
        self.were_lost = self.were_lost or bool(lost)
        self.blocks[ranks] = 0
        self._decoded["received"][lost] = self._decoded["there_ns"][lost] = 0

    @property
    def next_ns(self) -> int:
        """When the next one is read, of those that have been asked for; `NEVER_NS` without any."""
        return int(self._decoded["there_ns"][self._requests].min(initial=NEVER_NS))

    def _note_requests(self) -> None:
        self._requests = np.fromiter(self._held, dtype=np.int64, count=len(self._held))
