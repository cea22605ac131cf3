"""Pools of engines that go ahead: all steps up to a time before which it is known what comes."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from emulator.arrays import Bools, Int64s
from emulator.units import NS_PER_S
from serving.simulator.computed_prompts import ComputedPrompts
from serving.simulator.engine_pool import EnginePool
from serving.simulator.pool_run import PoolRun
from serving.simulator.request_arrivals import RequestArrivals
from serving.simulator.scheduler_arrays import NEVER_NS, NONE
from serving.simulator.simulated_engine import SimulatedEngine
from serving.simulator.step_run_record import NOTHING_COMES, Coming
from serving.simulator.steps_ahead import RunStops

AHEAD_NS: Final = NS_PER_S
AHEAD_REQUESTS: Final = 32
"""The first pool goes ahead until so many more have come, at least for so long; and then the other
one, to which nothing else comes.
"""
_NONE_OPEN: Final = np.zeros(0, dtype=np.int64)


class PromptsHeldUp(Exception):
    """The pool that prefills went ahead where blocks that had not been read may hold it up."""


def next_prompt_ns(engines: Sequence[SimulatedEngine], now_ns: int, arrival_ns: int) -> int:
    """Before when none is computed by engines that have begun their steps by now; the next request
    comes at `arrival_ns`. Now where that is not known: requests wait for what is not read yet.

    A prompt is computed when a step ends, and one that begins later ends later, too.
    """
    next_ns = NEVER_NS
    for engine in engines:
        if engine.end_ns is None and engine.schedulers.requests:
            return now_ns
        next_ns = min(next_ns, arrival_ns if engine.end_ns is None else engine.end_ns)
    return next_ns


class PoolsAhead:
    """A pool that takes what arrives; with `computed` it prefills, and another one decodes what it
    sends over. The last one is judged by a mask [requests].

    Turns of sessions come a pause after the end of others, before which nothing has to know them.
    """

    def __init__(
        self,
        pools: Sequence[EnginePool],
        computed: ComputedPrompts | None,
        arrivals: RequestArrivals,
        judged: Bools,
    ) -> None:
        *_, last = pools
        self._pools = [
            _PoolAhead(pool, judged if pool is last else np.zeros_like(judged)) for pool in pools
        ]
        self._computed = computed
        self._unread = None if computed is None else _UnreadAhead(pools[0], computed)
        self._arrivals = arrivals

    def ahead_ns(self, now_ns: int) -> int:
        """Until when all may go ahead: nothing ends before what happens next, and what waits for an
        end comes a pause later.
        """
        arrivals = self._arrivals
        times_ns = [arrivals.next_ns(), *(pool.next_ns for pool in self._pools)]
        if self._computed is not None:
            times_ns.append(self._computed.next_ns)
        next_ns = max(now_ns, min(times_ns))
        ahead_ns = max(next_ns + AHEAD_NS, arrivals.own_ns(AHEAD_REQUESTS))
        return min(ahead_ns, next_ns + arrivals.pause_ns)

    def go_ahead(self, until_ns: int, judged_left: int) -> Int64s:
        """Make all steps that begin before `until_ns`; an engine that decodes alone stops when none
        of `judged_left` is left.

        Returns the requests that got their last tokens: [ended].
        """
        first_pool, last_pool = self._pools[0], self._pools[-1]
        first_pool.come(self._arrivals.hand_over(until_ns))
        if self._computed is not None and self._unread is not None:
            computed = first_pool.go_ahead(until_ns, judged_left)
            self._unread.add(computed)
            self._computed.add(computed)
            last_pool.come(self._computed.due(until_ns))
        return last_pool.go_ahead(until_ns, judged_left)

    def check_unread(self, now_ns: int) -> None:
        """Raise PromptsHeldUp where, until now, blocks of prompts that had not been read were so
        many that a rank with them would have had too few, or evicted others: they were free here.
        """
        if self._unread is not None:
            self._unread.check(now_ns)


class _UnreadAhead:
    """Computed prompts of a pool that went ahead, until the other one has read them."""

    def __init__(self, pool: EnginePool, computed: ComputedPrompts) -> None:
        schedulers = [each.schedulers for each in pool.engines]
        block_tokens = schedulers[0].bounds.block_tokens
        self._pool = pool
        self._computed = computed
        self._requests = schedulers[0].arrays.requests
        self._blocks = -(-self._requests["tokens"] // block_tokens)  # [requests]
        counted = -(-schedulers[0].policy.pending_tokens_max // block_tokens)
        self._room_blocks = max(counted, int(self._blocks.max(initial=0)))
        """Free ones of a rank beyond which more of them change nothing."""
        self._prompts = np.zeros(0, dtype=np.int64)
        self._held_max = 0

    def add(self, prompts: Int64s) -> None:
        self._prompts = np.append(self._prompts, prompts)

    def check(self, now_ns: int) -> None:
        """As `PoolsAhead.check_unread`."""
        prompts = self._prompts
        there_ns = self._computed.there_ns(prompts)
        is_read = there_ns <= now_ns
        ends_ns = np.where(is_read, there_ns, now_ns)
        at_ns = np.append(self._requests["last_token_ns"][prompts], ends_ns)
        blocks = np.append(self._blocks[prompts], -self._blocks[prompts])
        rank = np.tile(self._requests["ended_on"][prompts], 2)
        order = np.lexsort((-blocks, at_ns, rank))
        held = int(blocks[order].cumsum().max(initial=0))  # of one rank: each one's add up to none
        self._prompts = prompts[~is_read]
        self._held_max = max(self._held_max, held)
        lacks = held and held + self._room_blocks > self._free_blocks_min
        # What is free later is evicted later, too, and others before it.
        if lacks or self._held_max > self._fresh_blocks_min:
            raise PromptsHeldUp

    @property
    def _free_blocks_min(self) -> int:
        """Of a rank of the pool, until now."""
        schedulers = [each.schedulers for each in self._pool.engines]
        return min(each.all_blocks - each.kv_blocks_used_max for each in schedulers)

    @property
    def _fresh_blocks_min(self) -> int:
        """Of a rank of the pool, with a prefix cache those that were never used: while it has any,
        it evicts nothing.
        """
        schedulers = [each.schedulers for each in self._pool.engines]
        return min(
            each.all_blocks + 1 - int(each.arrays.ranks["fresh"].max()) for each in schedulers
        )


class _PoolAhead:
    """One of them, whose engines meet at arrivals alone."""

    def __init__(self, pool: EnginePool, judged: Bools) -> None:
        self._pool = pool
        self._judged = judged
        self._run = PoolRun(pool, judged) if pool.shares_by_load else None
        self._coming = NOTHING_COMES  # to be routed
        self._open = _NONE_OPEN  # have come, and have not ended

    def come(self, more: Coming) -> None:
        """Let `more` requests come before the time to which the pool then goes ahead."""
        self._open = np.append(self._open, more.request)
        if self._pool.can_expect:
            self._pool.expect(more)
            return
        self._coming = more

    @property
    def next_ns(self) -> int:
        """When something happens next; `NEVER_NS` if nothing does."""
        times_ns = [each.end_ns or each.paused_ns for each in self._pool.engines]
        return min((each for each in times_ns if each is not None), default=NEVER_NS)

    def go_ahead(self, until_ns: int, judged_left: int) -> Int64s:
        """Make all steps that begin before `until_ns`, or until none of `judged_left` is left.

        Returns the requests that got their last tokens: [ended].
        """
        coming, self._coming = self._coming, NOTHING_COMES
        if self._run is not None:
            coming = self._run.go_ahead(coming, until_ns)
            self._run = None if self._run.is_over else self._run
        for request, at_ns in zip(coming.request.tolist(), coming.at_ns.tolist(), strict=True):
            self._step_until(at_ns, judged_left)
            engine = self._pool.put(request)
            if not engine.is_busy and engine.paused_ns is None:
                engine.pause(at_ns)
        if self._run is None:
            self._step_until(until_ns, judged_left)
        is_over = self._pool.requests["last_token_ns"][self._open] != NONE
        ended: Int64s = self._open[is_over]
        self._open = self._open[~is_over]
        return ended

    def _step_until(self, until_ns: int, judged_left: int) -> None:
        for engine in self._pool.engines:
            if engine.end_ns is not None and engine.end_ns <= until_ns:
                end_ns = engine.end_ns
                engine.give_tokens()
                engine.finish()
                engine.pause(end_ns)
            left = judged_left
            while left and engine.paused_ns is not None and engine.paused_ns < until_ns:
                done = engine.go_ahead(engine.paused_ns, until_ns, self._stops(left))
                engine.gone_ahead(done)
                left -= done.judged

    def _stops(self, judged_left: int) -> RunStops:
        alone = len(self._pool.engines) == 1
        return RunStops(
            judged=self._judged,
            judged_left=judged_left if alone else len(self._judged) + 1,
            steps=NEVER_NS,
            at_ends=False,
        )
