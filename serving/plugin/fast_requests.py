"""vLLM's requests as rows of the compiled schedulers' table, which live requests share by turns.

A row is a request's from its arrival until its end. With prefix caching each row has the keys of
its full blocks, made of the hashes that vLLM computes, so that requests hit what they would hit in
vLLM's cache.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray
from vllm.config import VllmConfig
from vllm.v1.request import Request

from emulator.arrays import Int32s, Int64s
from serving.policy.prefill_throttle import parse_prefill_policy
from serving.settings import Settings
from serving.simulator import compiled_schedulers as kernel
from serving.simulator import request_migration as migration
from serving.simulator.lockstep_schedulers import LockstepSchedulers
from serving.simulator.scheduler_arrays import (
    NONE,
    Records,
    SchedulerBounds,
    prefix_cache,
    request_records,
    scheduler_arrays,
)

_ROWS: Final = 256
"""At first; there are twice as many whenever none is left."""

_KEY_BYTES: Final = 8
"""Of a block's hash, which tell blocks apart: of a million, two are taken for one in one of 37
million engines."""

_ORDER_PER_S: Final = 2.0**31
"""Two times of arrival that differ do so in these units; exact, and 64 bits last until 2106."""


class FastRequests:
    """The live requests of an engine, on `schedulers`.

    `names`, `keys` (of their words), `clients`, `started` and `has_news` are of each row.
    """

    def __init__(self, config: VllmConfig, *, kv_blocks: int, block_tokens: int) -> None:
        settings = Settings.from_additional_config(config.additional_config)
        scheduler = config.scheduler_config
        self._context_tokens: int = config.model_config.max_model_len
        self._block_tokens = block_tokens
        self._by_priority = scheduler.policy == "priority"
        self._levels: list[int] = [0]  # priorities of live requests, the most urgent first
        self.arrivals = 0
        self._idle_row = self._idle_rows(1)[0]
        bounds = SchedulerBounds(
            seats=scheduler.max_num_active_seqs or scheduler.max_num_seqs,
            step_tokens=scheduler.max_num_scheduled_tokens or scheduler.max_num_batched_tokens,
            block_tokens=block_tokens,
            long_prefill_tokens=scheduler.long_prefill_token_threshold,
            by_priority=self._by_priority,
            context_tokens=self._context_tokens,
        )
        arrays = scheduler_arrays(
            self._idle_rows(_ROWS), ranks=settings.ranks, kv_blocks=kv_blocks, bounds=bounds
        )
        cache = None
        self._row_keys = self._context_tokens // block_tokens + 1
        if config.cache_config.enable_prefix_caching:
            cache = prefix_cache(
                np.zeros(_ROWS * self._row_keys, dtype=np.int64),
                arrays,
                bounds,
                kv_blocks,
                longest_tokens=self._context_tokens,
            )
        policy = parse_prefill_policy(settings.prefill_policy)
        self.schedulers = LockstepSchedulers(arrays, bounds, policy, cache)
        self._row_of: dict[str, int] = {}
        self._requests: list[Request | None] = []
        self._unused: list[int] = []
        self.names: NDArray[np.object_] = np.empty(0, dtype=np.object_)
        self.keys = np.zeros(0, dtype=np.uint64)
        self.clients = np.zeros(0, dtype=np.int64)
        self.started = np.zeros(0, dtype=np.bool_)
        self.has_news = np.zeros(0, dtype=np.bool_)
        self._last_tokens = np.zeros((0, block_tokens), dtype=np.int32)  # by position in a block
        self._lengthen(_ROWS)

    def _idle_rows(self, count: int) -> Records:
        nothing = np.zeros(count, dtype=np.int64)
        return request_records(
            arrival_ns=nothing,
            prompt_tokens=nothing,
            output_tokens=nothing,
            block_tokens=self._block_tokens,
        )

    def _lengthen(self, rows: int) -> None:
        """Have `rows` in all."""
        had = len(self._requests)
        self._requests += [None] * (rows - had)
        self._unused.extend(reversed(range(had, rows)))
        for name in ("names", "keys", "clients", "started", "has_news"):
            setattr(self, name, _lengthened(getattr(self, name), rows))
        if self.schedulers.cache is not None:
            self._last_tokens = _lengthened(self._last_tokens, rows)

    def _double(self) -> None:
        rows, schedulers = 2 * len(self._requests), self.schedulers
        records = np.concatenate([schedulers.arrays.requests, self._idle_rows(rows // 2)])
        schedulers.arrays = schedulers.arrays._replace(requests=records)
        if (cache := schedulers.cache) is not None:
            keys = _lengthened(cache.block_keys, rows * self._row_keys)
            schedulers.cache = cache._replace(block_keys=keys)
        self._lengthen(rows)

    def __contains__(self, name: str) -> bool:
        return name in self._row_of

    def row_of(self, name: str) -> int | None:
        """A request's row."""
        return self._row_of.get(name)

    def request(self, row: int) -> Request:
        """The request of a row."""
        request = self._requests[row]
        assert request is not None, "a row without a request"
        return request

    def by_rank(self) -> list[str]:
        """All of them: rank by rank, and last those without one."""
        ranks = self.records["rank"]

        def place(name: str) -> tuple[bool, int]:
            rank = int(ranks[self._row_of[name]])
            return rank == NONE, rank

        return sorted(self._row_of, key=place)

    @property
    def records(self) -> Records:
        """The schedulers' of each row."""
        return self.schedulers.arrays.requests

    def add(self, request: Request, key: int) -> int:
        """Give a request a row; `key`: of its words."""
        if not self._unused:
            self._double()
        row = self._unused.pop()
        self.arrivals += 1
        records = self.records
        records[row] = self._idle_row
        records["tokens"][row] = request.num_tokens
        most = min(request.max_tokens, self._context_tokens - request.num_tokens)
        records["tokens_left"][row] = max(1, most)
        records["arrival_ns"][row] = self.arrivals
        if self._by_priority:
            records["arrival_ns"][row] = int(request.arrival_time * _ORDER_PER_S)
            records["level"][row] = self._level(request.priority)
        records["key_begin"][row] = row * self._row_keys
        self.names[row], self.keys[row] = request.request_id, key
        self.clients[row] = request.client_index
        self._row_of[request.request_id] = row
        self._requests[row] = request
        self._note_keys(row, request, first=0)
        return row

    def free(self, row: int) -> None:
        """The row of a request that has ended, and is of no step under way, is another's next."""
        request = self.request(row)
        del self._row_of[request.request_id]
        self._requests[row], self.names[row] = None, None
        self.started[row] = self.has_news[row] = False
        self._unused.append(row)

    def _level(self, priority: int) -> int:
        """The level of a priority among those of live requests, whose levels may change."""
        if priority in self._levels:
            return self._levels.index(priority)
        arrays, rows = self.schedulers.arrays, list(self._row_of.values())
        priorities = np.array([self.request(row).priority for row in rows], dtype=np.int64)
        used = np.unique(priorities).tolist()
        before = [self._levels.index(each) for each in used]
        self._levels = sorted([*used, priority])
        after = [self._levels.index(each) for each in used]
        arrays.requests["level"][rows] = np.searchsorted(self._levels, priorities)

        def moved(waiting: Int64s) -> Int64s:
            """[ranks, levels], of the levels that there are now."""
            by_level = np.zeros((len(waiting), len(self._levels)), dtype=np.int64)
            by_level[:, after] = waiting[:, before]
            return by_level

        self.schedulers.arrays = arrays._replace(
            waiting_tokens=moved(arrays.waiting_tokens),
            waiting_requests=moved(arrays.waiting_requests),
        )
        return self._levels.index(priority)

    def _note_keys(self, row: int, request: Request, *, first: int) -> None:
        """Take the keys of a request's full blocks from number `first` on."""
        cache, hashes = self.schedulers.cache, request.block_hashes
        if cache is None or len(hashes) <= first:
            return
        begin = row * self._row_keys
        bits = b"".join(each[:_KEY_BYTES] for each in hashes[first:])
        keys = np.frombuffer(bits, dtype=np.int64)
        cache.block_keys[begin + first : begin + len(hashes)] = keys

    def note_tokens(self, rows: Int32s, token_ids: Int32s) -> None:
        """Keep the tokens that requests now have, for the keys of the blocks that they fill."""
        if self.schedulers.cache is None:
            return
        block_tokens, tokens = self._block_tokens, self.records["tokens"][rows]
        self._last_tokens[rows, (tokens - 1) % block_tokens] = token_ids
        for row in rows[tokens % block_tokens == 0].tolist():
            request = self.request(row)
            known = len(request.block_hashes)
            first = request.num_tokens - known * block_tokens
            request.append_output_token_ids(self._last_tokens[row, first:].tolist())
            self._note_keys(row, request, first=known)

    def reset_prefixes(self, *, restarts: bool) -> int:
        """Empty the caches of ranks on which nothing runs, or of all, where what runs begins anew.

        Returns of how many.
        """
        schedulers, emptied = self.schedulers, 0
        arrays, cache, blocks = schedulers.arrays, schedulers.cache, schedulers.all_blocks
        for rank, running in enumerate(arrays.ranks["running_count"].tolist()):
            if running and not restarts:
                continue
            emptied += 1
            for row in migration.take_out(arrays, cache, rank, blocks).tolist():
                kernel.put_in(arrays, schedulers.bounds, row, rank)
        return emptied

    def compile_kernels(self) -> None:
        """Compile what steps call, or read it from the disk; the instance is then of no use."""
        for ends in (True, False):
            self.records[0] = self._idle_row
            self.records["tokens"][0] = self.records["tokens_left"][0] = 1
            self.schedulers.put(0, begins=True)
            self.schedulers.schedule(now_ns=0)
            if ends:
                self.schedulers.give_tokens(0)
            else:
                self.schedulers.abort(0)


def _lengthened(array: NDArray, rows: int) -> NDArray:  # type: ignore[type-arg]
    """`array` with zeros behind it, so that its first axis has `rows`."""
    longer = np.zeros((rows, *array.shape[1:]), dtype=array.dtype)
    longer[: len(array)] = array
    return longer
