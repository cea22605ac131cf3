"""Prompts whose keys and values are on their way from the chips that computed them."""

from heapq import heappop, heappush

import numpy as np

from emulator.arrays import Int32s, Int64s
from serving.simulator.scheduler_arrays import NEVER_NS, Records
from serving.simulator.step_run_record import Coming


class KvTransfers:
    """From the requests of one pool to those of another, REQUEST records of both.

    Each takes its `transfer_ns`, [requests].
    """

    def __init__(self, prefilled: Records, decoded: Records, transfer_ns: Int64s) -> None:
        self._from = prefilled
        self._to = decoded
        self._transfer_ns = transfer_ns
        self._sent: list[tuple[int, int]] = []  # times and requests, a heap

    def send(self, prompts: Int32s | Int64s) -> None:
        """Send prompts that have been computed."""
        fields = ["arrival_ns", "deadline_ns"]
        self._to[fields][prompts] = self._from[fields][prompts]
        there_ns = self._from["last_token_ns"][prompts] + self._transfer_ns[prompts]
        for sent in zip(there_ns.tolist(), prompts.tolist(), strict=True):
            heappush(self._sent, sent)

    def __len__(self) -> int:
        """Prompts on their way."""
        return len(self._sent)

    @property
    def next_ns(self) -> int:
        """When the next one is there; `NEVER_NS` without any."""
        return self._sent[0][0] if self._sent else NEVER_NS

    def due(self, before_ns: int) -> Coming:
        """Take those that are there before that time."""
        taken: list[tuple[int, int]] = []
        while self.next_ns < before_ns:
            taken.append(heappop(self._sent))
        both = np.array(taken, dtype=np.int64).reshape(-1, 2)
        return Coming(request=both[:, 1].copy(), at_ns=both[:, 0].copy())
