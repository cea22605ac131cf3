"""The schedulers of a partition's ranks in lockstep: `LockstepScheduler` in virtual time."""

from collections.abc import Callable, Sequence
from typing import Any, Final, Self

import numpy as np

from emulator.arrays import Bools, Int32s, Int64s
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
from serving.simulator import compiled_schedulers as kernel
from serving.simulator import request_migration as migration
from serving.simulator.block_keys import block_keys
from serving.simulator.needed_cache import caches_when_full, shares
from serving.simulator.own_choices import NO_CHOICES, OwnChoices, OwnPrefillPolicy, RankChoice
from serving.simulator.pool_cache import engine_cache, pool_cache
from serving.simulator.scheduler_arrays import (
    NO_CONTEXT_LIMIT,
    NONE,
    Acceptance,
    PrefixCache,
    SchedulerArrays,
    SchedulerBounds,
    engine_arrays,
    pool_arrays,
    prefix_cache,
    request_records,
)
from serving.simulator.unread_prompts import UnreadPrompts
from serving.simulator.verified_drafts import step_drafts
from serving.traffic.engine_limits import EngineLimits

ARRIVAL_S_MAX: Final = 1e9
"""Nanoseconds of the clock are 64-bit."""


class LockstepSchedulers:
    """All ranks' schedulers, driven step by step: `admit`, `schedule`, `give_tokens`.

    When ranks leave or come back, between two steps: `set_ranks`, then `move`.
    """

    def __init__(
        self,
        arrays: SchedulerArrays,
        bounds: SchedulerBounds,
        policy: PrefillPolicy,
        cache: PrefixCache | None = None,
        acceptance: Acceptance | None = None,
        choose_rank: RankChoice | None = None,
        *,
        lacks_cache: bool = False,
        beside: tuple[SchedulerArrays, PrefixCache | None] | None = None,
    ) -> None:
        self.beside = beside
        """Of all engines of a pool, on a first axis but requests and keys: its own are a part of
        them, but for a cache that was made later.
        """
        self.lacks_cache = lacks_cache
        """Whether a preempted request would find its blocks in a cache, which is not there yet."""
        self._choose_rank = choose_rank
        self.arrays = arrays
        self.bounds = bounds
        self.policy = policy
        self.cache = cache
        self.acceptance = acceptance
        self.empty_rank_steps = 0
        self.kv_blocks_used_max = 0
        self.requests = 0
        """Requests that run or wait, `turned_away` ones too."""
        ranks = len(arrays.ranks)
        self._ranks = ranks
        self._up = np.ones(ranks, dtype=np.bool_)
        self.revise_demand: Callable[[Int64s, Int64s], None] | None = None
        """Changes the ranks' pending tokens and decodes, [ranks], before budgets are made."""
        self.is_open = True
        """Whether any rank takes requests."""
        self.unread: UnreadPrompts | None = None
        """Prompts that are for another pool, where their blocks are held."""
        self._inbox: list[int] = []  # requests without a rank, in order of arrival
        self._load_tokens: int | None = None  # None: not known
        self._rows = 0
        self.ended = 0
        """Requests that had their last token in the last step."""
        self._all_blocks = int(arrays.ranks["free_blocks"].max())
        self._pending = np.zeros(ranks, dtype=np.int64)
        self._decodes = np.zeros(ranks, dtype=np.int64)
        self._waited_steps = np.zeros(ranks, dtype=np.int64)
        self._unlimited = np.full(ranks, UNLIMITED, dtype=np.int64)
        tokens_max = len(arrays.rows) * (1 + bounds.speculative_tokens)
        self._given = np.zeros(tokens_max, dtype=np.int32)

    @classmethod
    def replicas(
        cls,
        traffic: Traffic,
        limits: EngineLimits,
        ranks: int,
        count: int,
        *,
        deadline_ns: Int64s | None = None,
        seed: int = 0,
        choices: OwnChoices = NO_CHOICES,
    ) -> list[Self]:
        """Those of `count` engines of `ranks` ranks each, on one table of `traffic`'s requests.

        `deadline_ns`: when each request is aborted, or NONE: [requests]. `seed`: of the draws
        which drafts are right.

        Raises ConfigError for an unknown prefill policy, and arrivals after `ARRIVAL_S_MAX`.
        """
        by_priority = limits.scheduling_policy == "priority"
        level = None
        if by_priority and traffic.priority is not None:
            level = np.unique(traffic.priority, return_inverse=True)[1]
        bounds = SchedulerBounds(
            seats=limits.max_num_seqs,
            step_tokens=limits.max_num_batched_tokens,
            block_tokens=limits.block_tokens,
            long_prefill_tokens=limits.long_prefill_token_threshold,
            by_priority=by_priority,
            speculative_tokens=limits.speculative_tokens,
            draft_slots=limits.draft_slots,
            context_tokens=limits.max_model_len or NO_CONTEXT_LIMIT,
        )
        acceptance = None
        if limits.speculative_tokens:
            rates = np.resize(np.array(limits.acceptance), limits.speculative_tokens)
            acceptance = Acceptance(rates=rates, seed=seed)
        policy = (
            parse_prefill_policy(limits.prefill_policy)
            if choices.prefill is None
            else OwnPrefillPolicy(function=choices.prefill)
        )
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
            level=level,
            deadline_ns=deadline_ns,
        )
        keys = block_keys(traffic, limits.block_tokens) if shares(traffic, limits) else None
        lacks_cache = caches_when_full(traffic, limits)
        pool = pool_arrays(requests, engines=count, ranks=ranks, kv_blocks=kv_blocks, bounds=bounds)
        caches = None if keys is None else pool_cache(keys, pool, bounds, kv_blocks)
        made = []
        for number in range(count):
            arrays = engine_arrays(pool, number)
            cache = None if caches is None else engine_cache(caches, number)
            made.append(
                cls(
                    *(arrays, bounds, policy, cache, acceptance, choices.rank),
                    lacks_cache=lacks_cache,
                    beside=(pool, caches),
                )
            )
        return made

    @property
    def has_builtin_choice(self) -> bool:
        """Whether requests go to the ranks that a server would send them to."""
        return self._choose_rank is None

    @property
    def load_tokens(self) -> int:
        """Tokens that requests hold or have yet to compute."""
        if self._load_tokens is None:
            self._load_tokens = int(kernel.held_tokens(self.arrays)) + self._inbox_tokens
        return self._load_tokens

    def tokens_left(self, request: int) -> int:
        """`load_tokens`, less the prompt tokens of `request` in the cache of the rank with most."""
        left = kernel.tokens_left(self.arrays, self.bounds, self.cache, request)
        return int(left) + self._inbox_tokens

    @property
    def _inbox_tokens(self) -> int:
        if not self._inbox:
            return 0
        return int(self.arrays.requests["tokens"][self._inbox].sum())

    @property
    def waiting(self) -> int:
        """Requests that wait, with a rank or without."""
        return int(self.arrays.ranks["waiting_count"].sum()) + len(self._inbox)

    @property
    def unplaced(self) -> int:
        """Those without a rank."""
        return len(self._inbox)

    @property
    def turned_away(self) -> int:
        """Requests that wait until a rank is open, or for `move` to end them if none is up."""
        return 0 if self.is_open else len(self._inbox)

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
        self._load_tokens = None
        self.take_inbox()
        if self.is_open and self._choose_rank is None:
            coming = kernel.admit(self.arrays, self.bounds, self.cache, first, now_ns)
        else:
            arrived = self.arrays.requests["arrival_ns"][first:].searchsorted(now_ns, side="right")
            coming = first + int(arrived)
            self._inbox.extend(range(first, coming))
            self.take_inbox()
        self.requests += coming - first
        return coming

    def put(self, request: int, *, begins: bool) -> None:
        """Take a request: at once where a step `begins` now, else when the one under way ends."""
        if self._load_tokens is not None:
            self._load_tokens += int(self.arrays.requests[request]["tokens"])
        self._inbox.append(request)
        self.requests += 1
        if begins:
            self.take_inbox()

    def take_inbox(self) -> None:
        """Send what came during a step to ranks, if one is open."""
        if self._inbox and self.is_open:
            self._send(np.array(self._inbox, dtype=np.int64))
            self._inbox.clear()

    def _send(self, requests: Int64s) -> None:
        """Send requests to ranks, of which one is open."""
        arrays, bounds = self.arrays, self.bounds
        if self._choose_rank is None:
            kernel.send(arrays, bounds, self.cache, requests)
            return
        is_open = np.asarray(arrays.ranks["is_open"])
        for request in requests.tolist():
            rank = self._choose_rank(**self.weighed(request))
            if rank is None or not 0 <= rank < self._ranks or not is_open[rank]:
                ranks = ", ".join(map(str, np.flatnonzero(is_open)))
                raise ConfigError(field="rank", value=rank, expected=f"one that is open: {ranks}")
            kernel.put_in(arrays, bounds, request, int(rank))

    def weighed(self, request: int) -> dict[str, Any]:
        """What a choice of its rank goes by, all [ranks]."""
        hits, tokens, held = (np.zeros(self._ranks, dtype=np.int64) for _ in range(3))
        kernel.weigh(self.arrays, self.bounds, self.cache, request, (hits, tokens, held))
        return {
            "hit_tokens": hits,
            "load_tokens": tokens,
            "has_seat": held < self.bounds.seats,
            "is_up": np.array(self.arrays.ranks["is_open"]),
        }

    def set_ranks(self, up: Bools, closed: Bools) -> None:
        """From now on, ranks `up` and not `closed` take requests: both [ranks].

        Closed ranks keep theirs. `move` takes those of ranks that are down.
        """
        self._up[:] = up
        self.arrays.ranks["is_open"] = up & ~closed
        self.is_open = bool(self.arrays.ranks["is_open"].any())

    def move(self, lost: Sequence[int] = (), renewed: Sequence[int] = ()) -> list[int]:
        """After a step and `set_ranks`: requests of `lost` ranks and of those down go to open ones.

        They keep their tokens and order, and are computed again; what ran counts as preempted.
        `lost` ranks and those that had requests forget their prefixes, and so do `renewed` ones
        with other weights. Then those turned away are sent. With no rank up, all of them end in
        error, and are returned.
        """
        self._load_tokens = None
        ranks, leaving = self.arrays.ranks, np.zeros(self._ranks, dtype=np.bool_)
        leaving[list(lost)] = True
        leaving |= ~self._up & (ranks["running_count"] + ranks["waiting_count"] > 0)
        moving = self._taken_out(np.flatnonzero(leaving))
        ended: list[int] = []
        if not self._up.any():
            ended = [*moving.tolist(), *self._inbox]
            self._inbox.clear()
            self.requests -= len(ended)
        elif not self.is_open:
            waiting = np.append(moving, np.array(self._inbox, dtype=np.int64))
            self._inbox = migration.by_arrival(self.arrays, waiting).tolist()
        else:
            self.send_again(moving)
        self.forget_prefixes(renewed)
        self.take_inbox()
        return ended

    def send_again(self, requests: Int64s) -> None:
        """Send requests that have left their ranks to open ones, where they wait in their order."""
        self._send(migration.by_arrival(self.arrays, requests))
        if not self.bounds.by_priority:
            migration.restore_order(self.arrays, requests)

    def _taken_out(self, ranks: Int64s) -> Int64s:
        """Requests of `ranks`, which then have none, in order of arrival."""
        if self.unread is not None:
            self.unread.lose(ranks)
        taken = [
            migration.take_out(self.arrays, self.cache, rank, self._all_blocks)
            for rank in ranks.tolist()
        ]
        return migration.by_arrival(
            self.arrays, np.concatenate([np.zeros(0, dtype=np.int64), *taken])
        )

    def give_up_unsent(self) -> list[int]:
        """Give up the requests that have no rank; returns them, in order of arrival."""
        self._load_tokens = None
        unsent, self._inbox = self._inbox, []
        self.requests -= len(unsent)
        return unsent

    def forget_prefixes(self, ranks: Sequence[int]) -> None:
        """Empty the prefix caches of ranks on which nothing runs."""
        if self.cache is not None:
            for rank in ranks:
                migration.forget_prefixes(self.arrays, self.cache, rank)

    def make_cache(self) -> None:
        """From now on, between two steps, keep the blocks of preempted requests.

        Until one is, there is nothing in a cache that any would hit, as prompts share nothing.
        """
        arrays, bounds = self.arrays, self.bounds
        tokens = arrays.requests["tokens"] + arrays.requests["tokens_left"]
        keys = np.arange(int((tokens // bounds.block_tokens).sum()), dtype=np.int64)
        self.cache = prefix_cache(keys, arrays, bounds, self._all_blocks + 1)
        kernel.fill_cache(arrays, self.cache, bounds.block_tokens)
        self.lacks_cache = False

    @property
    def rows(self) -> int:
        """Of the step under way."""
        return self._rows

    @property
    def all_blocks(self) -> int:
        """KV blocks of a rank."""
        return self._all_blocks

    def went_ahead(
        self, *, rows: int, requests: int, free_blocks_min: int, empty_rank_steps: int
    ) -> None:
        """Note steps that were made in one call; the last one, of `rows`, may be under way.

        `requests` run or wait; `free_blocks_min`, of a rank, and `empty_rank_steps` are of these.
        """
        self._load_tokens = None
        self._rows = rows
        self.requests = requests
        self.kv_blocks_used_max = max(self.kv_blocks_used_max, self._all_blocks - free_blocks_min)
        self.empty_rank_steps += empty_rank_steps

    def schedule(self, within: SchedulerBounds | None = None, *, now_ns: int) -> StepBatch:
        """Decide a step, `within` tighter bounds; a batch without rows when no rank has anything to
        compute. It says which drafts are verified and made. KV is asked for, or there, at `now_ns`.
        """
        self._load_tokens = None
        self.take_inbox()
        arrays = self.arrays
        if self.lacks_cache and kernel.may_preempt(arrays, self.bounds):
            self.make_cache()
        bounds = self.bounds if within is None else within
        by_rank = self._budgets(), self._decodes
        self._rows = rows = kernel.schedule(arrays, bounds, self.cache, *by_rank, now_ns)
        new_tokens, verified, made = step_drafts(arrays, self.acceptance, rows)
        free = arrays.ranks["free_blocks"]
        if self.unread:
            free = free + self.unread.blocks  # no request of this engine has them
        used = self._all_blocks - int(free.min())
        self.kv_blocks_used_max = max(self.kv_blocks_used_max, used)
        batch = StepBatch(
            ranks=self._ranks,
            rank=arrays.rows["rank"][:rows].copy(),
            new_tokens=new_tokens,
            context_tokens=arrays.rows["context"][:rows].copy(),
            logit_rows=arrays.ranks["logit_rows"].copy(),
            verified_drafts=verified,
            made_drafts=made,
        )
        if rows:
            busy = np.bincount(batch.rank, minlength=self._ranks) > 0
            self.empty_rank_steps += int((self._up & ~busy).sum())
        return batch

    def _budgets(self) -> Int64s:
        if not self.policy.pending_tokens_max:
            return self._unlimited
        kernel.demand(
            self.arrays, self.bounds, self.policy.pending_tokens_max, self._pending, self._decodes
        )
        if self.revise_demand is not None:
            self.revise_demand(self._pending, self._decodes)
        demand = PrefillDemand(
            pending_tokens=self._pending, decodes=self._decodes, waited_steps=self._waited_steps
        )
        budgets = self.policy.budgets(demand)
        self._waited_steps = demand.waited_after(budgets)
        return budgets

    def refuse_own_policy(self) -> None:
        """Raise ConfigError if a user's policy lets no rank compute what it could."""
        if isinstance(self.policy, OwnPrefillPolicy):
            expected = "a budget for a rank with prefill where none decodes"
            raise ConfigError("prefill", "no tokens for any rank", expected)

    def give_tokens(self, end_ns: int, silent: Sequence[int] = ()) -> Int32s:
        """End the step at `end_ns`: the request of each token it gives, in its order: [tokens].

        The next step writes them anew. Ranks that are `silent`, lost in the step, give no token;
        `move` has to take their requests.
        """
        self._load_tokens = None
        if len(silent):
            rows = self.arrays.rows[: self._rows]
            unanswered = rows["request"][np.isin(rows["rank"], silent)]
            self.arrays.requests["is_prefill"][unanswered] = True
        if self.unread is not None:
            self.unread.keep(self._rows)
        tokens, ended = kernel.give_tokens(
            self.arrays, self.cache, self.acceptance, self._rows, end_ns, self._given
        )
        self.ended = ended
        self.requests -= ended
        return self._given[:tokens]

    def ended_among(self, given: Int32s) -> Int32s:
        """Those of the last step's `given` that have their last token."""
        if not self.ended:
            return given[:0]
        ended: Int32s = given[self.arrays.requests["tokens_left"][given] == 0]
        return ended if self.acceptance is None else ended[np.diff(ended, prepend=NONE) != 0]

    def abort(self, request: int) -> None:
        """End a request that runs or waits; of others, nothing changes."""
        self._load_tokens = None
        if request in self._inbox:
            self._inbox.remove(request)
            self.requests -= 1
            return
        self.requests -= int(self.arrays.requests[request]["rank"] != NONE)
        kernel.abort(self.arrays, self.cache, request)

    def abort_due(self, now_ns: int) -> Int32s:
        """End requests with a deadline by now that run or wait; returns them: [aborted]."""
        self._load_tokens = None
        arrays, aborted = self.arrays, np.zeros(0, dtype=np.int32)
        due_ns = arrays.ranks["deadline_ns"]
        if ((due_ns != NONE) & (due_ns <= now_ns)).any():
            aborted = kernel.abort_due(arrays, self.cache, now_ns)
        if self._inbox:
            unsent = np.array(self._inbox, dtype=np.int32)
            due_ns = arrays.requests["deadline_ns"][unsent]
            is_due = (due_ns != NONE) & (due_ns <= now_ns)
            aborted = np.append(aborted, unsent[is_due])
            self._inbox = unsent[~is_due].tolist()
        self.requests -= len(aborted)
        return aborted
