"""The schedulers of a partition's ranks in lockstep: `LockstepScheduler` in virtual time."""

from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from emulator.specs.batch import StepBatch
from emulator.units import NS_PER_S
from loadgen.workloads.traffic import Traffic
from serving.engine.scheduler_state import RankQueues
from serving.policy.prefill_throttle import (
    UNLIMITED,
    PrefillDemand,
    PrefillPolicy,
    parse_prefill_policy,
)
from serving.simulator.block_keys import block_keys
from serving.simulator.compiled_schedulers import KERNEL
from serving.simulator.scheduler_arrays import (
    NONE,
    PrefixCache,
    SchedulerArrays,
    SchedulerBounds,
    prefix_cache,
    request_records,
    scheduler_arrays,
)
from serving.traffic.engine_limits import EngineLimits

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]


ARRIVAL_S_MAX: Final = 1e9
"""Nanoseconds of the clock are 64-bit."""


class LockstepSchedulers:
    """All ranks' schedulers, driven step by step: `admit`, `schedule`, `give_tokens`."""

    def __init__(
        self,
        arrays: SchedulerArrays,
        bounds: SchedulerBounds,
        policy: PrefillPolicy,
        cache: PrefixCache | None = None,
    ) -> None:
        self.arrays = arrays
        self.bounds = bounds
        self.policy = policy
        self.cache = cache
        self.empty_rank_steps = 0
        self.kv_blocks_used_max = 0
        self.requests = 0
        """Requests that run or wait."""
        ranks = len(arrays.ranks)
        self._ranks = ranks
        self._inbox: list[int] = []
        self._inbox_tokens = 0
        self._rows = 0
        self.ended = 0
        """Requests that had their last token in the last step."""
        self._all_blocks = int(arrays.ranks["free_blocks"].max())
        self._pending = np.zeros(ranks, dtype=np.int64)
        self._decodes = np.zeros(ranks, dtype=np.int64)
        self._waited_steps = np.zeros(ranks, dtype=np.int64)
        self._unlimited = np.full(ranks, UNLIMITED, dtype=np.int64)
        self._given = np.zeros(len(arrays.rows), dtype=np.int32)

    @classmethod
    def replicas(cls, traffic: Traffic, limits: EngineLimits, ranks: int, count: int) -> list[Self]:
        """Those of `count` engines of `ranks` ranks each, on one table of `traffic`'s requests.

        Raises ConfigError for an unknown prefill policy, and arrivals after `ARRIVAL_S_MAX`.
        """
        bounds = SchedulerBounds(
            seats=limits.max_num_seqs,
            step_tokens=limits.max_num_batched_tokens,
            block_tokens=limits.block_tokens,
        )
        policy = parse_prefill_policy(limits.prefill_policy)
        kv_blocks = limits.kv_blocks_per_rank
        if len(traffic) and traffic.arrival_s[-1] > ARRIVAL_S_MAX:
            raise ConfigError(
                field="arrival_s",
                value=float(traffic.arrival_s[-1]),
                expected=f"at most {ARRIVAL_S_MAX:g} s, some thirty years",
            )
        requests = request_records(
            arrival_ns=np.rint(traffic.arrival_s * NS_PER_S).astype(np.int64),
            prompt_tokens=traffic.prompt_tokens,
            output_tokens=traffic.output_tokens,
            block_tokens=limits.block_tokens,
        )
        keys = None
        if limits.prefix_caching and (
            traffic.blocks is not None or kv_blocks < _blocks_in_use_max(traffic, limits)
        ):
            keys = block_keys(traffic, limits.block_tokens)
        made = []
        for _ in range(count):
            arrays = scheduler_arrays(requests, ranks=ranks, kv_blocks=kv_blocks, bounds=bounds)
            cache = None if keys is None else prefix_cache(keys, arrays, bounds, kv_blocks)
            made.append(cls(arrays, bounds, policy, cache))
        return made

    @property
    def load_tokens(self) -> int:
        """Tokens that requests hold or have yet to compute."""
        arrays = self.arrays
        held = arrays.ranks["running_tokens"].sum() + arrays.waiting_tokens.sum()
        return int(held) + self._inbox_tokens

    def hit_tokens(self, request: int) -> int:
        """Prompt tokens of `request` in the cache of the rank that has most of them."""
        return int(KERNEL.most_hit_tokens(self.arrays, self.bounds, self.cache, request))

    @property
    def queues(self) -> tuple[RankQueues, ...]:
        """Each rank's, as of the last decision."""
        ranks = self.arrays.ranks
        return tuple(
            RankQueues(running=running, waiting=waiting, kv_blocks_used=self._all_blocks - free)
            for running, waiting, free in zip(
                *(
                    ranks[field].tolist()
                    for field in ("running_count", "waiting_count", "free_blocks")
                ),
                strict=True,
            )
        )

    def admit(self, first: int, now_ns: int) -> int:
        """Send all requests from `first` on that have arrived by now; returns the next to come."""
        coming = KERNEL.admit(self.arrays, self.bounds, self.cache, first, now_ns)
        self.requests += coming - first
        return coming

    def put(self, request: int, *, begins: bool) -> None:
        """Take a request: at once where a step `begins` now, else when the one under way ends."""
        self._inbox.append(request)
        self._inbox_tokens += int(self.arrays.requests[request]["tokens"])
        if begins:
            self.take_inbox()

    def take_inbox(self) -> None:
        """Send what came during a step to ranks."""
        for request in self._inbox:
            KERNEL.send(self.arrays, self.bounds, self.cache, request)
        self.requests += len(self._inbox)
        self._inbox.clear()
        self._inbox_tokens = 0

    def schedule(self) -> StepBatch:
        """Decide a step; a batch without rows when no rank has anything to compute."""
        arrays = self.arrays
        self._rows = rows = KERNEL.schedule(
            arrays, self.bounds, self.cache, self._budgets(), self._decodes
        )
        self.kv_blocks_used_max = self._all_blocks - int(arrays.ranks["free_blocks"].min())
        batch = StepBatch(
            ranks=self._ranks,
            rank=arrays.rows["rank"][:rows].copy(),
            new_tokens=arrays.rows["new"][:rows].copy(),
            context_tokens=arrays.rows["context"][:rows].copy(),
            logit_rows=arrays.ranks["logit_rows"].copy(),
        )
        if rows:
            busy = np.bincount(batch.rank, minlength=self._ranks) > 0
            self.empty_rank_steps += int((arrays.ranks["up"] & ~busy).sum())
        return batch

    def _budgets(self) -> Int64s:
        if not self.policy.pending_tokens_max:
            return self._unlimited
        KERNEL.demand(
            self.arrays, self.bounds, self.policy.pending_tokens_max, self._pending, self._decodes
        )
        demand = PrefillDemand(
            pending_tokens=self._pending, decodes=self._decodes, waited_steps=self._waited_steps
        )
        budgets = self.policy.budgets(demand)
        self._waited_steps = demand.waited_after(budgets)
        return budgets

    def give_tokens(self, end_ns: int) -> Int32s:
        """End the step at `end_ns`: the requests that get a token by it, in its order: [tokens].

        The next step writes them anew.
        """
        tokens, ended = KERNEL.give_tokens(self.arrays, self.cache, self._rows, end_ns, self._given)
        self.ended = ended
        self.requests -= ended
        return self._given[:tokens]

    def ended_among(self, given: Int32s) -> Int32s:
        """Those of the last step's `given` that have their last token."""
        if not self.ended:
            return given[:0]
        ended: Int32s = given[self.arrays.requests["tokens_left"][given] == 0]
        return ended

    def abort(self, request: int) -> None:
        """End a request that runs or waits; of others, nothing changes."""
        self.requests -= int(self.arrays.requests[request]["rank"] != NONE)
        KERNEL.abort(self.arrays, self.cache, request)


def _blocks_in_use_max(traffic: Traffic, limits: EngineLimits) -> int:
    """KV blocks from which on a rank never preempts, vLLM's own block included.

    Where prompts share nothing, only a preempted request finds blocks in the cache, its own.
    """
    blocks = -(-(traffic.prompt_tokens + traffic.output_tokens) // limits.block_tokens)
    return int(np.sort(blocks)[::-1][: limits.max_num_seqs].sum()) + 1
