"""Prompts that have been computed on other chips than those that decode them."""

from heapq import heappop, heappush

import numpy as np

from emulator.arrays import Int32s, Int64s
from serving.simulator.scheduler_arrays import NEVER_NS, Records
from serving.simulator.step_run_record import Coming


class ComputedPrompts:
    """They go from the requests of one pool to those of another, REQUEST records of both.

    Keys and values go while a prompt is computed, and are there at its end. Assumed: the links take
    what a step computes in no longer than the step. Prompts of which a part was cached where they
    were computed are asked for with a decision of the other pool's engine, as vLLM's connector
    does, and then take their `transfer_ns`, [requests].
    """

    def __init__(self, prefilled: Records, decoded: Records, transfer_ns: Int64s) -> None:
        self._from = prefilled
        self._to = decoded
        decoded["received"] = decoded["tokens"] - 1  # the last is computed there
        decoded["transfer_ns"], decoded["there_ns"] = transfer_ns, NEVER_NS
        self._computed: list[tuple[int, int]] = []  # times and requests, a heap

    def add(self, prompts: Int32s | Int64s) -> None:
        """Let prompts go over that have been computed."""
        fields = ["arrival_ns", "deadline_ns"]
        self._to[fields][prompts] = self._from[fields][prompts]
        self._to["is_pushed"][prompts] = self._from["hits"][prompts] == 0
        ends_ns = self._from["last_token_ns"][prompts]
        for computed in zip(ends_ns.tolist(), prompts.tolist(), strict=True):
            heappush(self._computed, computed)

    def there_ns(self, prompts: Int64s) -> Int64s:
        """When the KV of prompts is read; `NEVER_NS` where it has not been asked for."""
        there_ns: Int64s = self._to["there_ns"][prompts]
        return there_ns

    def __len__(self) -> int:
        """Prompts that no engine has taken."""
        return len(self._computed)

    @property
    def next_ns(self) -> int:
        """When the next one is computed; `NEVER_NS` without any."""
        return self._computed[0][0] if self._computed else NEVER_NS

    def due(self, before_ns: int) -> Coming:
        """Take those that are computed before that time."""
        taken: list[tuple[int, int]] = []
        while self.next_ns < before_ns:
            taken.append(heappop(self._computed))
        both = np.array(taken, dtype=np.int64).reshape(-1, 2)
        return Coming(request=both[:, 1].copy(), at_ns=both[:, 0].copy())
